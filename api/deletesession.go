package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/sessions"
)

// DeleteSession: blue.catbird.mls.deleteSession. A repeated call changes nothing, because an ended
// session stays ended.
func (h *handlers) DeleteSession(c *call, in *mlsapi.DeleteSessionInput) error {
	if err := c.actsFor(in.DeviceID); err != nil {
		return err
	}
	err := h.write(c, "", "", content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.DeleteSessionOutput{Success: true}, c.endSessions(ctx, tx, in.DeviceID)
	})
	switch {
	case err != nil:
		return err
	case c.session != nil:
		h.Sessions.Ended(*c.session)
	default:
		h.Sessions.Wake.Send()
	}
	return nil
}

// endSessions ends the session of the call. If the call has no session, endSessions ends the
// sessions of the caller's device, or all the caller's sessions if device is nil.
func (c *call) endSessions(ctx context.Context, tx pgx.Tx, device *string) error {
	switch {
	case c.session != nil:
		return sessions.EndSession(ctx, tx, *c.session)
	case device != nil:
		return sessions.EndDevice(ctx, tx, c.caller, *device)
	}
	return sessions.End(ctx, tx, c.caller)
}
