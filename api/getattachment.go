package api

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/features/attachments"
	"mlsd/messages"
)

// maxDownload bounds the time of a download. A client as slow as downloadPace allows needs a
// quarter of it for 50 MiB.
const maxDownload = time.Hour

// GetAttachment: blue.catbird.mls.getAttachment.
func (h *handlers) GetAttachment(c *call, p *mlsapi.GetAttachmentParams) error {
	window, id, err := h.attachment(c.ctx, c, h.DB, p.ConvoID, p.AttachmentID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.http.Request().Context(), maxDownload) // bounds the answer, not the handler
	var a *attachments.Content
	err = acrossResets(ctx, c, h.DB, window, func(w messages.Window) (err error) {
		a, err = h.Attachments.Open(ctx, h.DB, w, id)
		return err
	})
	if err != nil {
		cancel()
		return err
	}
	status := http.StatusOK
	offset, length, ranged := byteRange(c.http.Request().Header.Get(headerRange), a.Size)
	switch {
	case p.Offset != nil || p.Length != nil:
		offset, length, ranged = or(p.Offset, 0), or(p.Length, a.Size), false
	case ranged:
		status = http.StatusPartialContent
	default:
		offset, length = 0, a.Size
	}
	if !a.Select(offset, length) {
		cancel()
		return unsatisfiable(a.Size)
	}
	header := http.Header{}
	if ranged {
		header.Set(headerContentRange, fmt.Sprintf("bytes %d-%d/%d", a.Offset, a.Offset+a.Length-1, a.Size))
	}
	header.Set("Accept-Ranges", "bytes")
	header.Set("Etag", `"`+hex.EncodeToString(a.SHA256[:])+`"`)
	header.Set(echo.HeaderCacheControl, "private")
	// A browser must not show the bytes of an attachment as a page of ours.
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	header.Set(echo.HeaderContentDisposition, "attachment")
	c.content = &download{body: a, length: a.Length, status: status, header: header, close: func() {
		if err := a.Close(); err != nil {
			h.log.Debug("an object was not closed", "error", err)
		}
		cancel()
	}}
	return nil
}
