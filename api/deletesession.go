package api

import (
	"mlsd/api/mlsapi"
	"mlsd/internal/sessions"
)

// DeleteSession: blue.catbird.mls.deleteSession. What has ended stays ended, however often it is
// called.
func (h *handlers) DeleteSession(c *call, in *mlsapi.DeleteSessionInput) error {
	err := c.actsFor(in.DeviceID)
	switch {
	case err != nil:
		return err
	case c.session != nil:
		err = h.sessions.Delete(c.ctx, *c.session)
	case in.DeviceID != nil:
		err = sessions.EndDevice(c.ctx, h.db, c.caller, *in.DeviceID)
	default:
		err = sessions.End(c.ctx, h.db, c.caller)
	}
	if err != nil {
		return err
	}
	h.sessions.Wake()
	return c.reply(&mlsapi.DeleteSessionOutput{Success: true})
}
