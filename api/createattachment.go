package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/people/quota"
)

// smallAttachment is the least that one attachment counts in the quota, in bytes.
const smallAttachment = 64 * kib

// CreateAttachment: blue.catbird.mls.createAttachment.
func (h *handlers) CreateAttachment(c *call, in *mlsapi.CreateAttachmentInput) error {
	if h.Attachments == nil {
		return errNoAttachments
	}
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	announced := attachments.Announcement{Caller: c.caller, Size: in.Size}
	sum, err := hex.DecodeString(in.Sha256)
	if err != nil || len(sum) != sha256.Size || strings.ToLower(in.Sha256) != in.Sha256 {
		return lexcodec.Malformed("sha256", "must be 64 lower-case hexadecimal digits", in.Sha256)
	}
	copy(announced.SHA256[:], sum)
	c.uses(quota.Bytes, rosterBytes)
	return h.write(c, in.ConvoID, key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			m, err := convos.Authorise(ctx, tx, convo, c.caller)
			if err != nil {
				return nil, err
			}
			announced.Window = m.Window
			a, made, err := h.Attachments.Create(ctx, tx, announced)
			if err == nil && made { // a repeated request was counted the first time
				err = c.quota.Take(quota.Cost{Of: quota.AttachmentBytes, N: max(in.Size, smallAttachment)})
			}
			if err != nil {
				return nil, err
			}
			return &mlsapi.CreateAttachmentOutput{
				AttachmentID: a.ID.String(), URI: a.URI(), PartSize: a.PartSize, PartCount: int64(a.Parts()),
				State: string(a.State),
			}, nil
		})
}
