package api

import (
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetConvos: blue.catbird.mls.getConvos.
func (h *handlers) GetConvos(c *call, p *mlsapi.GetConvosParams) error {
	after := uuid.Nil
	if p.Cursor != nil {
		var err error
		if after, err = uuid.Parse(*p.Cursor); err != nil || after == uuid.Nil {
			return named(mlsapi.ErrInvalidCursor, "cursor is not one that this method gave")
		}
	}
	found, more, err := convos.List(c.ctx, h.db, c.caller, after, int(p.Limit))
	if err != nil {
		return err
	}
	out := &mlsapi.GetConvosOutput{Conversations: make([]mlsapi.ConvoView, len(found))}
	for i, convo := range found {
		out.Conversations[i] = *view(convo)
	}
	if more {
		last := found[len(found)-1].ID.String()
		out.Cursor = &last
	}
	return c.reply(out)
}
