package api

import (
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// GetCursorPolicy: blue.catbird.mls.getCursorPolicy.
func (h *handlers) GetCursorPolicy(c *call) error {
	sharing, err := consent.SharingOf(c.ctx, h.DB, c.caller)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.GetCursorPolicyOutput{ShareCursors: string(sharing)})
}
