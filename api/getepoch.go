package api

import "mlsd/api/mlsapi"

// GetEpoch: blue.catbird.mls.getEpoch.
func (h *handlers) GetEpoch(c *call, p *mlsapi.GetEpochParams) error {
	_, member, err := c.member(h.DB, p.ConvoID)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.GetEpochOutput{ConvoID: p.ConvoID, CurrentEpoch: member.Epoch})
}
