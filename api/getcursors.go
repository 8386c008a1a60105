package api

import (
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// GetCursors: blue.catbird.mls.getCursors.
func (h *handlers) GetCursors(c *call, p *mlsapi.GetCursorsParams) error {
	convo, _, err := c.member(c.db, p.ConvoID)
	if err != nil {
		return err
	}
	sharing, err := consent.SharingOf(c.ctx, c.db, c.caller)
	if err != nil {
		return err
	}
	found, err := consent.Cursors(c.ctx, c.db, convo, c.caller)
	if err != nil {
		return err
	}
	out := &mlsapi.GetCursorsOutput{Cursors: make([]mlsapi.CursorView, len(found)),
		Sharing: sharing == consent.WithMembers}
	for i, v := range found {
		out.Cursors[i] = mlsapi.CursorView{DID: v.DID, Read: v.Read, Delivered: v.Delivered}
	}
	return c.reply(out)
}
