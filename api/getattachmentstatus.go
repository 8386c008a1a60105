package api

import (
	"mlsd/api/mlsapi"
	"mlsd/features/attachments"
)

// GetAttachmentStatus: blue.catbird.mls.getAttachmentStatus.
func (h *handlers) GetAttachmentStatus(c *call, p *mlsapi.GetAttachmentStatusParams) error {
	window, id, err := h.attachment(c.ctx, c, h.DB, p.ConvoID, p.AttachmentID)
	if err != nil {
		return err
	}
	a, err := h.Attachments.Status(c.ctx, h.DB, window, id)
	if err != nil {
		return err
	}
	out := &mlsapi.GetAttachmentStatusOutput{
		AttachmentID: a.ID.String(), URI: a.URI(), State: string(a.State), Size: a.Size, PartSize: a.PartSize,
		PartCount: int64(a.Parts()),
		Parts:     make([]int64, len(a.There)), CheckedParts: present(int64(a.CheckedParts)),
		ProcessingStartedAt: datetime(a.Since),
	}
	for i, part := range a.There {
		out.Parts[i] = int64(part)
	}
	if a.State == attachments.Failed {
		out.Failure = &a.Failure
	}
	return c.reply(out)
}
