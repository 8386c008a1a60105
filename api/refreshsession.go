package api

import "mlsd/api/mlsapi"

// RefreshSession: blue.catbird.mls.refreshSession. A repetition within two minutes gets the first
// answer.
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
