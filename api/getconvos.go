package api

import (
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// GetConvos: blue.catbird.mls.getConvos.
func (h *handlers) GetConvos(c *call, p *mlsapi.GetConvosParams) error {
	after, err := placeOf(p.Cursor, uuid.Nil)
	if err != nil {
		return err
	}
	filter := convos.All
	if p.Requests != nil {
		filter = convos.Accepted
		if *p.Requests {
			filter = convos.Requests
		}
	}
	answer, view := c.list(), mlsapi.ConvoView{}
	more, counts, err := convos.List(c.ctx, c.db, c.caller, filter, after, int(p.Limit), func(convo *convos.Convo) bool {
		id := view.ID
		showConvo(&view, convo)
		if !answer.add(&view, shownBytes*(1+len(view.Members)/4)) {
			view.ID = id
			return false
		}
		return true
	})
	if err != nil {
		return err
	}
	if err := h.Cursors.Keep(c.ctx, c.caller, counts); err != nil { // the next call counts again
		h.log.DebugContext(c.ctx, "unread messages are counted again", "error", err)
	}
	out := &mlsapi.GetConvosOutput{}
	if more {
		out.Cursor = &view.ID
	}
	return c.replyList(answer, out)
}
