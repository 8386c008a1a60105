package api

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
	"mlsd/people/sessions"
)

// The reasons to refuse a bearer of the wrong kind.
var (
	errNoSession   = &serviceauth.InvalidError{Reason: "this method takes a service-auth token, no session"}
	errSessionOnly = &serviceauth.InvalidError{Reason: "this method takes the session that is to be refreshed, no " +
		"service-auth token"}
)

// admitSession authenticates a caller by a session. A session is not used up. Only the idempotency
// key keeps a repeated write from taking effect twice.
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

// actsFor returns an error if the caller's session belongs to another device than the request
// names. device is nil if the request names no device.
func (c *call) actsFor(device *string) error {
	if c.session != nil && device != nil && *device != c.session.Device {
		return named(mlsapi.ErrNotPermitted, "the session is of another device; send a service-auth token")
	}
	return nil
}

// sessionDevice returns the device of the caller's session, or "" if the caller has a service-auth
// token.
func (c *call) sessionDevice() string {
	if c.session == nil {
		return ""
	}
	return c.session.Device
}

// watchSession calls ended if the caller's session ends or expires before stop is called.
func (h *handlers) watchSession(c *call, ended func(error)) (stop func()) {
	if c.session == nil {
		return func() {}
	}
	return h.Sessions.Watch(*c.session, ended)
}

// grant returns the fields of an answer with a session.
func (c *call) grant(g sessions.Grant) (session, refresh string, expires, ends lexcodec.Datetime) {
	c.http.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	c.replayed = g.Repeated
	return g.Bearer, g.Refresh, lexcodec.NewDatetime(g.Expires), lexcodec.NewDatetime(g.Ends)
}
