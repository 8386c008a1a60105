package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// UpdateCursor: blue.catbird.mls.updateCursor. Its guard is the maximum: saying it again changes nothing.
func (h *handlers) UpdateCursor(c *call, in *mlsapi.UpdateCursorInput) error {
	convo, err := convoID(in.ConvoID)
	if err != nil {
		return err
	}
	answer, err := h.writes.Do(c.ctx, c.write(in.ConvoID, "", nil), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		seq, err := convos.UpdateCursor(ctx, tx, convo, c.caller, in.Seq)
		if err != nil {
			return nil, err
		}
		out := mlsapi.UpdateCursorOutput{Seq: seq}
		return out.AppendJSON(nil), nil
	})
	if err != nil {
		return err
	}
	c.replyStored(answer)
	return nil
}
