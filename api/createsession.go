package api

import "mlsd/api/mlsapi"

// CreateSession: blue.catbird.mls.createSession. A repeated call gets another session.
func (h *handlers) CreateSession(c *call, in *mlsapi.CreateSessionInput) error {
	g, err := h.Sessions.Create(c.ctx, c.caller, c.address, in.DeviceID, c.token.Key)
	if err != nil {
		return err
	}
	out := &mlsapi.CreateSessionOutput{}
	out.Session, out.RefreshToken, out.ExpiresAt, out.EndsAt = c.grant(g)
	return c.reply(out)
}
