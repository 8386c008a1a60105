package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/attachments"
)

// DeleteAttachment: blue.catbird.mls.deleteAttachment.
func (h *handlers) DeleteAttachment(c *call, in *mlsapi.DeleteAttachmentInput) error {
	if h.Attachments == nil {
		return errNoAttachments
	}
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	err = h.write(c, in.ConvoID, key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			window, id, err := h.attachment(ctx, c, tx, in.ConvoID, in.AttachmentID)
			if err == nil {
				err = attachments.Delete(ctx, tx, window, c.caller, id)
			}
			return &mlsapi.DeleteAttachmentOutput{Deleted: true}, err
		})
	if err == nil && !c.replayed {
		h.AttachmentDeleted()
	}
	return err
}
