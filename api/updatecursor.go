package api

import "mlsd/api/mlsapi"

// UpdateCursor: blue.catbird.mls.updateCursor. A cursor only goes up, so a repeated request changes
// nothing.
func (h *handlers) UpdateCursor(c *call, in *mlsapi.UpdateCursorInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	seq, err := h.cursors.Update(c.ctx, convo, c.caller, in.Seq)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.UpdateCursorOutput{Seq: seq})
}
