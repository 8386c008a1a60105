package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/usage"
)

// Headers of idempotency. A PDS strips them all, so nothing depends on them.
const (
	headerKey      = "Idempotency-Key"
	headerReplay   = "X-Idempotency-Replay"
	headerConflict = "X-Idempotency-Conflict"
	headerExpired  = "X-Idempotency-Expired"
)

// call is one request on its way through its handler.
type call struct {
	ctx    context.Context
	http   echo.Context // a stream writes its answer itself
	route  *route
	header string                // Idempotency-Key, or ""
	caller syntax.DID            // the token's verified issuer
	token  *serviceauth.Verified // for a handler that uses it up itself

	answer   []byte
	usedKey  string // the key of the write's record; "": it has none
	replayed bool
	expired  bool        // the key had been used, and the lifetime of its record is over
	reserved reservation // of the answer, until it is written
}

// serve answers one XRPC request. handle says what happens to it, in order.
func (s *Server) serve(c echo.Context) error {
	begun := time.Now()
	cl := &call{ctx: c.Request().Context(), http: c, header: c.Request().Header.Get(headerKey)}
	err := s.handle(cl)
	s.count(cl, err, processingTime(c, begun))
	if err != nil {
		if !c.Response().Committed {
			drain(c.Request().Body)
		}
		return err
	}
	if c.Response().Committed { // a stream
		return nil
	}
	defer cl.reserved.release() // once the client has read the answer
	if cl.replayed {
		c.Response().Header().Set(headerReplay, "true")
	}
	return c.JSONBlob(http.StatusOK, cl.answer)
}

// handle takes a request through all checks to its handler.
func (s *Server) handle(cl *call) error {
	c := cl.http
	if err := s.byIP.check(c, c.RealIP()); err != nil {
		return err
	}
	err := s.admit(cl)
	subscription := err == nil && cl.route.Method.Kind == mlsapi.Subscription
	if subscription {
		err = s.stream(cl) // its handler finds out who the caller is
	}
	if err != nil {
		if cl.caller == "" && chargesAddress(err) {
			s.byIP.charge(c.RealIP())
		}
		return err
	}
	if subscription {
		return nil
	}
	if cl.header != "" && !lexcodec.ValidIdempotencyKey(cl.header) {
		return badRequest(headerKey + " must be 1 to 128 printable ASCII characters")
	}
	var body []byte
	if cl.route.Method.HasInput {
		var reserved reservation
		if body, reserved, err = s.readBody(cl); err != nil {
			return err
		}
		defer reserved.release()
	}
	if cl.route.Method.Streams {
		return s.stream(cl)
	}
	return s.call(cl, body)
}

// count counts a request of a verified caller. Everybody else's are only in the metrics.
func (s *Server) count(cl *call, err error, took time.Duration) {
	if cl.caller == "" {
		return
	}
	r := usage.Request{
		Caller: cl.caller.String(), NSID: cl.route.Method.NSID, Key: cl.usedKey, Replayed: cl.replayed, Expired: cl.expired,
		Failed: err != nil, Took: took,
	}
	if err != nil {
		if f, _, ok := answerTo(err); ok && conflicts(f.name) {
			r.Conflict = f.name
		}
	}
	s.cfg.Served(r)
}

// conflicts reports whether the error's name says that a request was refused because of another
// one.
func conflicts(name string) bool {
	return name == mlsapi.ErrEpochMismatch || name == mlsapi.ErrIdempotencyConflict || name == mlsapi.ErrRequestInProgress
}

// admit finds the route, checks the form of the request, and authenticates the caller. The handler
// of a subscription authenticates its caller itself. The caller's rate limit comes before its token
// is used up, which costs a database row.
func (s *Server) admit(cl *call) error {
	r, name := cl.http.Request(), cl.http.Param("nsid")
	route, ok := s.routes[name]
	if !ok {
		return failure{status: http.StatusNotImplemented, name: methodNotImplemented, message: "no such method"}
	}
	cl.route = route
	if err := checkForm(cl.http, route.Method); err != nil {
		return err
	}
	if route.Method.Streams {
		if err := waitToOpen(r.Context(), s.openings); err != nil {
			return err
		}
	}
	if route.Method.Kind == mlsapi.Subscription {
		return nil
	}
	token, err := s.cfg.Auth.Validate(r.Context(), r.Header.Get(echo.HeaderAuthorization), syntax.NSID(name), route.token != reusable,
		func(did syntax.DID) error { return s.byDID.take(cl.http, did.String()) })
	if err == nil && route.token == usedByDispatch {
		err = token.Use(r.Context())
	}
	if err != nil {
		return err
	}
	cl.caller, cl.token = token.Caller, &token
	return nil
}

// checkForm refuses a wrong HTTP method, repeated headers, and a body that is not plain JSON.
func checkForm(c echo.Context, method mlsapi.Method) error {
	if err := checkVerb(c, method); err != nil {
		return err
	}
	for _, name := range []string{echo.HeaderAuthorization, headerKey} {
		if len(c.Request().Header.Values(name)) > 1 {
			return badRequest("there is more than one " + name + " header")
		}
	}
	return nil
}

func checkVerb(c echo.Context, method mlsapi.Method) error {
	r := c.Request()
	switch method.Kind {
	case mlsapi.Subscription:
		return checkUpgrade(c)
	case mlsapi.Query:
		if r.Method != http.MethodGet { // HEAD is refused too: some queries claim or lease
			return badRequest("the method is a query: use GET")
		}
		return nil
	}
	if r.Method != http.MethodPost {
		return badRequest("the method is a procedure: use POST")
	}
	if !method.HasInput {
		return nil
	}
	if !plainJSON(r.Header.Get(echo.HeaderContentType)) {
		return badRequest("Content-Type must be application/json")
	}
	if coding := r.Header.Get(echo.HeaderContentEncoding); coding != "" && coding != "identity" {
		return badRequest("Content-Encoding must be identity")
	}
	return nil
}

func plainJSON(contentType string) bool {
	if contentType == echo.MIMEApplicationJSON { // nearly always
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == echo.MIMEApplicationJSON
}

// chargesAddress reports whether a request without a verified caller is charged to its IP address.
// It is not if the server could not check the token, or if the address has been charged already.
func chargesAddress(err error) bool {
	return !errors.Is(err, events.ErrInvalidTicket) && !errors.Is(err, serviceauth.ErrUnavailable) && !errors.As(err, new(limited)) &&
		!errors.As(err, new(busy)) && !errors.Is(err, context.Canceled) && !pgpool.Unavailable(err)
}

// How long an upload may take: uploadTime, and uploadTimePerMiB for each MiB.
const (
	uploadTime       = 10 * time.Second
	uploadTimePerMiB = time.Second
)

// readBody reads the whole body. It is in memory until the reservation is released.
func (s *Server) readBody(cl *call) (body []byte, reserved reservation, err error) {
	r, limit := cl.http.Request(), cl.route.maxBody
	if r.ContentLength > limit {
		return nil, reserved, tooLarge(limit)
	}
	size := limit
	if r.ContentLength >= 0 {
		size = r.ContentLength
	}
	if reserved, err = s.memory.forBody(r.Context(), cl.caller.String(), size); err != nil {
		return nil, reserved, err
	}
	defer func() {
		if err != nil {
			reserved.release()
		}
	}()
	if err := readUntil(cl.http, time.Now().Add(uploadTime+time.Duration(size/mib)*uploadTimePerMiB)); err != nil {
		return nil, reserved, err
	}
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	}
	switch {
	case err != nil:
		return nil, reserved, badRequest("the body ended early")
	case int64(len(body)) > limit:
		return nil, reserved, tooLarge(limit)
	}
	// net/http reads on, to notice that the client hangs up. The upload's deadline must not end the
	// handler.
	if err := readUntil(cl.http, time.Time{}); err != nil {
		return nil, reserved, err
	}
	return body, reserved, nil
}

// readUntil sets the deadline for reading from the client. The zero time is none.
func readUntil(c echo.Context, deadline time.Time) error {
	err := http.NewResponseController(c.Response()).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the upload: %w", err)
	}
	return nil
}

func tooLarge(limit int64) error {
	return failure{status: http.StatusRequestEntityTooLarge, name: payloadTooLarge, message: "the body has more than " + strconv.FormatInt(limit, 10) + " bytes"}
}

// maxRequest bounds the time of a request after its body was read: a PDS gives up after ten
// seconds. A COMMIT that has begun still ends.
const maxRequest = 9 * time.Second

// call decodes the request and calls its handler. The answer's memory is reserved until the client
// has read it, then in the answer's true size.
func (s *Server) call(cl *call, body []byte) error {
	ctx, cancel := context.WithTimeout(cl.ctx, maxRequest)
	defer cancel()
	cl.ctx = ctx
	var err error
	if cl.reserved, err = s.memory.forAnswer(ctx, cl.caller.String(), cl.route.answerMemory); err != nil {
		return err
	}
	answered := false
	defer func() {
		if !answered { // the handler refused or panicked
			cl.reserved.release()
		}
	}()
	err = cl.route.Serve(&s.handlers, cl, params(cl), body)
	if cl.expired {
		cl.http.Response().Header().Set(headerExpired, "true")
	}
	if errors.Is(err, serviceauth.ErrReplayed) {
		s.byIP.charge(cl.http.RealIP())
	}
	if err != nil {
		return s.declared(cl.route, err)
	}
	cl.reserved.shrink(int64(cap(cl.answer)))
	answered = true
	return nil
}

// stream calls the handler of a method whose answer is a stream of events. It has no deadline and
// no memory reservation.
func (s *Server) stream(cl *call) error {
	return s.declared(cl.route, cl.route.Serve(&s.handlers, cl, params(cl), nil))
}

// params are the request's query parameters, nil if there are none. A former name of a parameter
// counts if the present one is missing.
func params(cl *call) url.Values {
	r := cl.http.Request()
	if r.URL.RawQuery == "" {
		return nil
	}
	query := r.URL.Query()
	for former, present := range cl.route.formerNames {
		if !query.Has(present) && query.Has(former) {
			query[present] = query[former]
		}
	}
	return query
}

// key returns the idempotency key of a request. field is the key in its input. Direct clients may
// send it as a header as well; both must agree.
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

// smallAnswer is the first size of an answer's buffer, in bytes. Most answers fit into it.
const smallAnswer = 512

// reply sets the answer.
func (c *call) reply(v lexcodec.Appender) error {
	c.answer = v.AppendJSON(make([]byte, 0, smallAnswer))
	return nil
}

// maxDrained bounds how much of an unwanted body drain reads, in bytes.
const maxDrained = 16 * mib

// drain reads the rest of a refused body. A PDS that is still sending does not read an answer, and
// never uses the connection again. A client that sends more than maxDrained, or stops sending,
// loses the connection.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, maxDrained) // an error means that the client has gone
}
