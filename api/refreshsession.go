package api

import "mlsd/api/mlsapi"

// RefreshSession: blue.catbird.mls.refreshSession. A repeated request gets the first answer for two
// minutes.
func (h *handlers) RefreshSession(c *call, in *mlsapi.RefreshSessionInput) error {
	if c.session == nil {
		return errSessionOnly
	}
	g, err := h.Sessions.Refresh(c.ctx, *c.session, c.address, in.RefreshToken)
	if err != nil {
		return err
	}
	out := &mlsapi.RefreshSessionOutput{}
	out.Session, out.RefreshToken, out.ExpiresAt, out.EndsAt = c.grant(g)
	return c.reply(out)
}
