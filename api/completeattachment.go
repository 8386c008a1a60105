package api

import (
	"context"

	"mlsd/api/mlsapi"
)

// CompleteAttachment: blue.catbird.mls.completeAttachment. The work goes on if the client hangs up,
// because a PDS hangs up after ten seconds.
func (h *handlers) CompleteAttachment(c *call, in *mlsapi.CompleteAttachmentInput) error {
	window, id, err := h.attachment(c.ctx, c, h.DB, in.ConvoID, in.AttachmentID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), maxComplete)
	defer cancel()
	c.expensive.end() // from here on the request mostly waits for the store of attachments
	a, err := h.Attachments.Complete(ctx, window, id)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.CompleteAttachmentOutput{AttachmentID: a.ID.String(), URI: a.URI(), Size: a.Size})
}
