package api

import (
	"mlsd/api/mlsapi"
	"mlsd/features/push"
)

// GetPushKey: blue.catbird.mls.getPushKey.
func (h *handlers) GetPushKey(c *call) error {
	if h.Push.WebPush == nil {
		return push.ErrNoWebPush
	}
	return c.reply(&mlsapi.GetPushKeyOutput{PublicKey: h.Push.WebPush})
}
