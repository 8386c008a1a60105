package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
)

// Headers of idempotency. A PDS strips them all, so nothing depends on them.
const (
	headerKey      = "Idempotency-Key"
	headerReplay   = "X-Idempotency-Replay"
	headerConflict = "X-Idempotency-Conflict"
)

// call is one authenticated request on its way through its handler.
type call struct {
	ctx    context.Context
	nsid   string
	caller syntax.DID // the token's verified issuer
	header string     // Idempotency-Key, or ""

	answer   []byte
	replayed bool
}

// reply sets the answer.
func (c *call) reply(v mlsapi.Appender) error {
	c.answer = v.AppendJSON(nil)
	return nil
}

// key returns the idempotency key of a request that carries field in its input: the header serves clients that talk to us
// directly, and both together must agree.
func (c *call) key(field *string) (string, error) {
	switch {
	case field == nil && c.header == "":
		return "", nil
	case field == nil:
		return c.header, nil
	case c.header != "" && c.header != *field:
		return "", badRequest("idempotencyKey differs from the " + headerKey + " header")
	}
	return *field, nil
}

// serve answers one XRPC request.
func (s *Server) serve(c echo.Context) error {
	r := c.Request()
	answered, err := s.handle(c)
	if err != nil {
		// A PDS that is still sending does not read an answer, and never uses the connection again.
		drain(r.Body)
		return err
	}
	if answered.replayed {
		c.Response().Header().Set(headerReplay, "true")
	}
	return c.JSONBlob(http.StatusOK, answered.answer)
}

func (s *Server) handle(c echo.Context) (*call, error) {
	r := c.Request()
	if err := s.byIP.check(c, c.RealIP()); err != nil {
		return nil, err
	}
	route, caller, err := s.admit(r, c.Param("nsid"))
	if err != nil {
		if !errors.Is(err, serviceauth.ErrUnavailable) && !errors.Is(err, serviceauth.ErrBusy) { // those are not the caller's fault
			s.byIP.charge(c.RealIP())
		}
		return nil, err
	}
	if err := s.byDID.take(c, caller.String()); err != nil {
		return nil, err
	}
	cl := &call{ctx: r.Context(), nsid: route.Method.NSID, caller: caller, header: r.Header.Get(headerKey)}
	if cl.header != "" && !mlsapi.ValidIdempotencyKey(cl.header) {
		return nil, badRequest(headerKey + " must be 1 to 128 printable ASCII characters")
	}
	var body []byte
	if route.Method.HasInput {
		var release func()
		if body, release, err = s.readBody(r, bodyLimit(route.Method.NSID)); err != nil {
			return nil, err
		}
		defer release()
	}
	if err := route.Serve(&s.handlers, cl, r.URL.Query(), body); err != nil {
		return nil, s.renamed(route.Method, err)
	}
	return cl, nil
}

// admit does what comes before the caller is known: which method it is, whether the request has its form, and who sends it.
func (s *Server) admit(r *http.Request, nsid string) (route mlsapi.Route[*call], caller syntax.DID, err error) {
	route, ok := s.routes[nsid]
	if !ok {
		return route, "", failure{http.StatusNotImplemented, methodNotImplemented, "no such method"}
	}
	procedure := route.Method.Kind == mlsapi.Procedure
	if err := checkVerb(r, procedure); err != nil {
		return route, "", err
	}
	for _, name := range []string{echo.HeaderAuthorization, headerKey} {
		if len(r.Header.Values(name)) > 1 {
			return route, "", badRequest("there is more than one " + name + " header")
		}
	}
	caller, err = s.cfg.Auth.Validate(r.Context(), r.Header.Get(echo.HeaderAuthorization), syntax.NSID(nsid), procedure)
	return route, caller, err
}

// checkVerb refuses the wrong HTTP method and a body that is not plain JSON.
func checkVerb(r *http.Request, procedure bool) error {
	if !procedure {
		if r.Method != http.MethodGet { // not even HEAD: some queries claim or lease
			return badRequest("the method is a query: use GET")
		}
		return nil
	}
	if r.Method != http.MethodPost {
		return badRequest("the method is a procedure: use POST")
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType))
	if err != nil || mediaType != "application/json" {
		return badRequest("Content-Type must be application/json")
	}
	if coding := r.Header.Get(echo.HeaderContentEncoding); coding != "" && coding != "identity" {
		return badRequest("Content-Encoding must be identity")
	}
	return nil
}

// Bounds of request bodies, in bytes.
const (
	maxBody = 15 << 20 // sendMessage: 10 MiB of ciphertext in base64, and what surrounds it
	// maxDrained is how much of a body that nobody wants is read before the refusal is written.
	maxDrained = 16 << 20
	// maxBufferedBodies bounds the bodies in memory at one time, all requests together.
	maxBufferedBodies = 256 << 20
	// maxBodyWait is how long a request waits for room among them.
	maxBodyWait = 5 * time.Second
)

// bodyLimit returns how long a method's body may be.
func bodyLimit(nsid string) int64 {
	switch nsid {
	case mlsapi.NSIDSendMessage:
		return maxBody
	case mlsapi.NSIDCreateConvo, mlsapi.NSIDAddMembers, mlsapi.NSIDLeaveConvo:
		return 5 << 20 // a commit, a Welcome and a GroupInfo of 1 MiB each, in base64
	default:
		return 256 << 10
	}
}

// readBody reads the whole body, which is in memory until release is called.
func (s *Server) readBody(r *http.Request, limit int64) (body []byte, release func(), err error) {
	if r.ContentLength > limit {
		return nil, nil, tooLarge(limit)
	}
	reserved := limit
	if r.ContentLength >= 0 {
		reserved = r.ContentLength
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxBodyWait)
	defer cancel()
	if err := s.bodies.Acquire(ctx, reserved); err != nil {
		return nil, nil, busy{after: time.Second}
	}
	release = func() { s.bodies.Release(reserved) }
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	}
	switch {
	case err != nil:
		release()
		return nil, nil, badRequest("the body ended early")
	case int64(len(body)) > limit:
		release()
		return nil, nil, tooLarge(limit)
	}
	return body, release, nil
}

// drain reads on what is left of a body, within bounds.
func drain(body io.Reader) {
	// Whoever sends more, or stops sending, loses the connection: there is nobody to report it to.
	_, _ = io.CopyN(io.Discard, body, maxDrained)
}

func tooLarge(limit int64) error {
	return failure{http.StatusRequestEntityTooLarge, payloadTooLarge,
		"the body has more than " + strconv.FormatInt(limit, 10) + " bytes"}
}
