package api

import (
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetGroupInfo: blue.catbird.mls.getGroupInfo.
func (h *handlers) GetGroupInfo(c *call, p *mlsapi.GetGroupInfoParams) error {
	convo, err := c.convoID(p.ConvoID)
	if err != nil {
		return err
	}
	info, epoch, err := convos.GroupInfoOf(c.ctx, c.db, convo, c.caller)
	if err != nil {
		return err
	}
	return c.replyObjects(len(info), &mlsapi.GetGroupInfoOutput{GroupInfo: info, Epoch: epoch})
}
