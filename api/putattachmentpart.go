package api

import (
	"encoding/hex"

	"mlsd/api/mlsapi"
	"mlsd/people/quota"
)

// PutAttachmentPart: blue.catbird.mls.putAttachmentPart. The body is written to the store while it
// is received.
func (h *handlers) PutAttachmentPart(c *call, p *mlsapi.PutAttachmentPartParams) error {
	window, id, err := h.attachment(c.ctx, c, h.DB, p.ConvoID, p.AttachmentID)
	if err != nil {
		return err
	}
	if err := h.openQuota(c); err != nil {
		return err
	}
	// Received bytes count even if the part is not stored.
	pay := func(bytes int64) error { return c.quota.Take(quota.Cost{Of: quota.UploadedBytes, N: bytes}) }
	sum, err := h.Attachments.Put(c.ctx, window, id, int(min(p.Part, maxPart)), c.bytes, pay)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.PutAttachmentPartOutput{Part: p.Part, Sha256: hex.EncodeToString(sum[:])})
}

// maxPart is an upper bound of the number of a part.
const maxPart = 1 << 30
