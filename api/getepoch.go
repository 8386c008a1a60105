package api

import (
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetEpoch: blue.catbird.mls.getEpoch.
func (h *handlers) GetEpoch(c *call, p *mlsapi.GetEpochParams) error {
	convo, err := c.convoID(p.ConvoID)
	if err != nil {
		return err
	}
	member, err := convos.Authorise(c.ctx, h.DB, convo, c.caller)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.GetEpochOutput{ConvoID: p.ConvoID, CurrentEpoch: member.Epoch})
}
