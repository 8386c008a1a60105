package api

import (
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// GetLogHead: blue.catbird.mls.getLogHead.
func (h *handlers) GetLogHead(c *call, p *mlsapi.GetLogHeadParams) error {
	convo, _, err := c.member(h.DB, p.ConvoID)
	if err != nil {
		return err
	}
	var hashed int64
	defer func() { c.spend(int(hashed / unitBytes)) }()
	head, err := h.Heads.Head(c.ctx, convo, &hashed)
	if err != nil {
		return err
	}
	out := &mlsapi.GetLogHeadOutput{Head: head, Keys: h.Heads.Keys()}
	if len(p.Senders) > 0 {
		dids := make([]string, len(p.Senders))
		for i, did := range p.Senders {
			dids[i] = did.String()
		}
		found, err := h.Heads.Senders(c.ctx, convo, c.caller.String(), dids)
		if err != nil {
			return err
		}
		for _, s := range found {
			out.Senders = append(out.Senders, mlsapi.LogSender{DID: syntax.DID(s.DID), Salt: s.Salt, Tag: s.Tag[:]})
		}
	}
	return c.reply(out)
}
