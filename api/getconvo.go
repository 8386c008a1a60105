package api

import (
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetConvo: blue.catbird.mls.getConvo.
func (h *handlers) GetConvo(c *call, p *mlsapi.GetConvoParams) error {
	id, err := convoID(p.ConvoID)
	if err != nil {
		return err
	}
	convo, err := convos.Get(c.ctx, h.db, id, c.caller)
	if err != nil {
		return err
	}
	return c.replyLarge(&mlsapi.GetConvoOutput{Convo: *view(convo)})
}
