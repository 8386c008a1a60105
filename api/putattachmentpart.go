package api

import (
	"encoding/hex"

	"mlsd/api/mlsapi"
)

// PutAttachmentPart: blue.catbird.mls.putAttachmentPart. The body goes to the store as it comes.
func (h *handlers) PutAttachmentPart(c *call, p *mlsapi.PutAttachmentPartParams) error {
	window, id, err := h.attachment(c.ctx, c, h.db, p.ConvoID, p.AttachmentID)
	if err != nil {
		return err
	}
	sum, err := h.attachments.Put(c.ctx, window, id, int(min(p.Part, maxPart)), c.bytes)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.PutAttachmentPartOutput{Part: p.Part, Sha256: hex.EncodeToString(sum[:])})
}

// maxPart is larger than the number of any part.
const maxPart = 1 << 30
