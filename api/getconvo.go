package api

import (
	"encoding/hex"
	"slices"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetConvo: blue.catbird.mls.getConvo.
func (h *handlers) GetConvo(c *call, p *mlsapi.GetConvoParams) error {
	id, err := c.convoID(p.ConvoID)
	if err != nil {
		return err
	}
	convo, err := convos.Get(c.ctx, c.db, id, c.caller)
	if err != nil {
		return err
	}
	return c.replyLarge(&mlsapi.GetConvoOutput{Convo: *view(convo)})
}

// view encodes a convo.
func view(c convos.Convo) *mlsapi.ConvoView {
	v := new(mlsapi.ConvoView)
	showConvo(v, &c)
	return v
}

// showConvo sets v to a convo. It reuses v's memory for the members.
func showConvo(v *mlsapi.ConvoView, c *convos.Convo) {
	*v = mlsapi.ConvoView{
		ID:            c.ID.String(),
		GroupID:       hex.EncodeToString(c.GroupID),
		Creator:       c.Creator,
		Members:       slices.Grow(v.Members[:0], len(c.Members))[:len(c.Members)],
		Epoch:         c.Epoch,
		CipherSuite:   c.CipherSuite.String(),
		CreatedAt:     lexcodec.NewDatetime(c.CreatedAt),
		CommitLevel:   new(string(c.CommitLevel)),
		LastSeq:       &c.LastSeq,
		Unread:        &c.Unread,
		IsAdmin:       present(c.Admin),
		LastMessageAt: datetime(c.LastMessageAt), ClosedAt: datetime(c.ClosedAt),
		SuccessorGroupID: present(hex.EncodeToString(c.Successor)), SuccessorConvoID: shownID(c.SuccessorID.UUID),
		PredecessorConvoID: shownID(c.PredecessorID.UUID),
	}
	for i, m := range c.Members {
		v.Members[i] = mlsapi.MemberView{DID: m.DID, JoinedAt: lexcodec.NewDatetime(m.JoinedAt), IsAdmin: present(m.Admin)}
	}
	if c.Request {
		v.Request, v.InvitedBy = &c.Request, c.InvitedBy
	}
	if c.Name != nil || c.Description != nil {
		v.Metadata = &mlsapi.ConvoMetadata{Name: c.Name, Description: c.Description}
	}
}
