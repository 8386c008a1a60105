package api

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
	"mlsd/internal/sessions"
)

// The reasons why a bearer of the wrong kind is refused.
var (
	errNoSession   = &serviceauth.InvalidError{Reason: "this method takes a service-auth token, no session"}
	errSessionOnly = &serviceauth.InvalidError{Reason: "this method takes the session that is to be refreshed, no " +
		"service-auth token"}
)

// admitSession authenticates a caller by a session. There is nothing to use up: the idempotency key
// is what guards a write against its repetition.
func (h *handlers) admitSession(c *call, bearer string, mayCall func(syntax.DID) error) error {
	session, err := h.Sessions.Verify(c.ctx, bearer)
	if err != nil {
		return err
	}
	if err := mayCall(session.DID); err != nil {
		return err
	}
	if c.route.noSession {
		return errNoSession
	}
	c.caller, c.session = session.DID, &session
	return nil
}

// actsFor fails if the caller has a session of another device than the request names. nil: it names
// none.
func (c *call) actsFor(device *string) error {
	if c.session != nil && device != nil && *device != c.session.Device {
		return named(mlsapi.ErrNotPermitted, "the session is of another device; send a service-auth token")
	}
	return nil
}

// sessionDevice is the device of the caller's session, "" if it has a service-auth token.
func (c *call) sessionDevice() string {
	if c.session == nil {
		return ""
	}
	return c.session.Device
}

// watchSession calls ended when the caller's session ends or expires, until stop is called.
func (h *handlers) watchSession(c *call, ended func(error)) (stop func()) {
	if c.session == nil {
		return func() {}
	}
	return h.Sessions.Watch(*c.session, ended)
}

// grant answers with a session.
func (c *call) grant(g sessions.Grant) (session, refresh string, expires, ends lexcodec.Datetime) {
	c.http.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	c.replayed = g.Repeated
	return g.Bearer, g.Refresh, lexcodec.NewDatetime(g.Expires), lexcodec.NewDatetime(g.Ends)
}
