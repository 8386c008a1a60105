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

	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

// Headers of idempotency. A PDS strips them all, so nothing depends on them.
const (
	headerKey      = "Idempotency-Key"
	headerReplay   = "X-Idempotency-Replay"
	headerConflict = "X-Idempotency-Conflict"
	headerExpired  = "X-Idempotency-Expired"
)

// call is one authenticated request on its way through its handler.
type call struct {
	ctx    context.Context
	nsid   string
	caller syntax.DID            // the token's verified issuer
	token  *serviceauth.Verified // which sendMessage uses up itself
	header string                // Idempotency-Key, or ""
	http   echo.Context          // whose answer a stream writes itself

	answer   []byte
	replayed bool
	expired  bool // the key is that of a record whose lifetime is over
	room     room // of the answer, until it is written
}

// smallAnswer is what most answers have room in, in bytes.
const smallAnswer = 512

// reply sets the answer.
func (c *call) reply(v mlsapi.Appender) error {
	c.answer = v.AppendJSON(make([]byte, 0, smallAnswer))
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
		if !c.Response().Committed {
			// A PDS that is still sending does not read an answer, and never uses the connection again.
			drain(r.Body)
		}
		return err
	}
	if c.Response().Committed { // a stream
		return nil
	}
	defer answered.room.release() // once the client has read it
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
	route, token, err := s.admit(c)
	caller := token.Caller
	cl := &call{ctx: r.Context(), nsid: route.Method.NSID, caller: caller, token: &token, header: r.Header.Get(headerKey), http: c}
	subscription := route.Method.Kind == mlsapi.Subscription
	if err == nil && subscription {
		err = s.stream(cl, route) // which finds out who the caller is
	}
	if err != nil {
		if cl.caller == "" && s.chargeable(err) {
			s.byIP.charge(c.RealIP())
		}
		return nil, err
	}
	if subscription {
		return cl, nil
	}
	if cl.header != "" && !mlsapi.ValidIdempotencyKey(cl.header) {
		return nil, badRequest(headerKey + " must be 1 to 128 printable ASCII characters")
	}
	var body []byte
	if route.Method.HasInput {
		var held room
		if body, held, err = s.readBody(c, cl); err != nil {
			return nil, err
		}
		defer held.release()
	}
	if route.Method.Streams {
		return cl, s.stream(cl, route)
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxRequest)
	defer cancel()
	cl.ctx = ctx
	size, answers := answerRoom(cl.nsid), s.smallAnswers
	if size > maxSmall {
		answers = s.largeAnswers
	}
	if cl.room, err = answers.take(ctx, caller.String(), size); err != nil {
		return nil, err
	}
	answered := false
	defer func() {
		if !answered { // refused, or the handler has panicked
			cl.room.release()
		}
	}()
	err = route.Serve(&s.handlers, cl, params(r), body)
	if cl.expired { // whatever came of it: what is left is the natural guard
		c.Response().Header().Set(headerExpired, "true")
	}
	if errors.Is(err, serviceauth.ErrReplayed) {
		s.byIP.charge(c.RealIP())
	}
	if err != nil {
		return nil, s.renamed(route.Method, err)
	}
	cl.room.shrink(int64(cap(cl.answer)))
	answered = true
	return cl, nil
}

// stream serves a method whose answer is a stream of events. It has no time to keep, and no memory to hold.
func (s *Server) stream(cl *call, route mlsapi.Route[*call]) error {
	return s.renamed(route.Method, route.Serve(&s.handlers, cl, params(cl.http.Request()), nil))
}

// params are the request's, nil if there are none.
func params(r *http.Request) url.Values {
	if r.URL.RawQuery == "" {
		return nil
	}
	return r.URL.Query()
}

// chargeable reports whether the address is to blame that the caller could not be told, and has not been charged for it.
func (s *Server) chargeable(err error) bool {
	return !errors.Is(err, events.ErrInvalidTicket) && !errors.Is(err, serviceauth.ErrUnavailable) && !errors.As(err, new(limited)) &&
		!errors.As(err, new(busy)) && !errors.Is(err, context.Canceled) && !pgpool.Unavailable(err)
}

// maxRequest bounds the time of a request once its body is here: a PDS gives up after ten seconds. A COMMIT under way is
// finished all the same.
const maxRequest = 9 * time.Second

// admit does what comes before the caller is known: which method it is, whether the request has its form, and who sends it, unless
// that is for the method to find out. The caller's rate limit comes before its token is used up, which costs a row.
func (s *Server) admit(c echo.Context) (route mlsapi.Route[*call], token serviceauth.Verified, err error) {
	r, nsid := c.Request(), c.Param("nsid")
	route, ok := s.routes[nsid]
	if !ok {
		return route, token, failure{status: http.StatusNotImplemented, name: methodNotImplemented, message: "no such method"}
	}
	if err := checkVerb(c, route.Method); err != nil {
		return route, token, err
	}
	for _, name := range []string{echo.HeaderAuthorization, headerKey} {
		if len(r.Header.Values(name)) > 1 {
			return route, token, badRequest("there is more than one " + name + " header")
		}
	}
	if subscription := route.Method.Kind == mlsapi.Subscription; subscription || route.Method.Streams {
		if err := turn(r.Context(), s.openings); err != nil || subscription {
			return route, token, err
		}
	}
	procedure := route.Method.Kind == mlsapi.Procedure
	token, err = s.cfg.Auth.Validate(r.Context(), r.Header.Get(echo.HeaderAuthorization), syntax.NSID(nsid), procedure,
		func(did syntax.DID) error { return s.byDID.take(c, did.String()) })
	if err == nil && procedure && nsid != mlsapi.NSIDSendMessage { // which uses it up in the transaction of the message
		err = token.Use(r.Context())
	}
	if err != nil {
		return route, serviceauth.Verified{}, err
	}
	return route, token, nil
}

// checkVerb refuses the wrong HTTP method and a body that is not plain JSON.
func checkVerb(c echo.Context, method mlsapi.Method) error {
	r := c.Request()
	switch method.Kind {
	case mlsapi.Subscription:
		return checkUpgrade(c)
	case mlsapi.Query:
		if r.Method != http.MethodGet { // not even HEAD: some queries claim or lease
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
	if contentType == echo.MIMEApplicationJSON { // as nearly always
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == echo.MIMEApplicationJSON
}

// Bounds of what requests hold in memory, in bytes.
const (
	maxBody = 15 << 20 // sendMessage: 10 MiB of ciphertext in base64, and what surrounds it
	// maxDrained is how much of a body that nobody wants is read before the refusal is written.
	maxDrained = 16 << 20
	// maxSmall parts the bodies and the answers: uploads and pages must not keep the many small requests waiting.
	maxSmall = 256 << 10

	smallRoom, smallRoomOfCaller       = 64 << 20, 32 << 20 // of bodies, and of answers
	largeBodies, largeBodiesOfCaller   = 256 << 20, 32 << 20
	largeAnswers, largeAnswersOfCaller = 512 << 20, 64 << 20
)

// slowestUpload is how long a body may take for each MiB, after its first ten seconds.
const slowestUpload = time.Second

// answerRoom is the memory that a method's answer may take, with what it is made from. It is held until the client has read the
// answer, by then in the answer's true size.
func answerRoom(nsid string) int64 {
	switch nsid {
	case mlsapi.NSIDGetMessages, mlsapi.NSIDGetCommits, mlsapi.NSIDGetConvos:
		return 4 * maxPageBytes
	case mlsapi.NSIDGetWelcome, mlsapi.NSIDGetKeyPackages, mlsapi.NSIDGetGroupInfo:
		return 4 << 20
	case mlsapi.NSIDGetConvo, mlsapi.NSIDCreateConvo:
		return 256 << 10
	case mlsapi.NSIDPublishKeyPackages, mlsapi.NSIDGetKeyPackageStats:
		return 128 << 10
	default:
		return 4 << 10
	}
}

// bodyLimit returns how long a method's body may be.
func bodyLimit(nsid string) int64 {
	switch nsid {
	case mlsapi.NSIDSendMessage:
		return maxBody
	case mlsapi.NSIDCreateConvo, mlsapi.NSIDAddMembers, mlsapi.NSIDLeaveConvo, mlsapi.NSIDSubmitCommit, mlsapi.NSIDProcessExternalCommit:
		return 5 << 20 // a commit, a Welcome and a GroupInfo of 1 MiB each, in base64
	case mlsapi.NSIDPublishKeyPackages:
		return 1 << 20 // 100 KeyPackages of 4 KiB each, in base64
	default:
		return 256 << 10
	}
}

// readBody reads the whole body, which is in memory until its room is released.
func (s *Server) readBody(c echo.Context, cl *call) (body []byte, held room, err error) {
	r, limit := c.Request(), bodyLimit(cl.nsid)
	if r.ContentLength > limit {
		return nil, held, tooLarge(limit)
	}
	size := limit
	if r.ContentLength >= 0 {
		size = r.ContentLength
	}
	bodies := s.smallBodies
	if size > maxSmall {
		bodies = s.largeBodies
	}
	if held, err = bodies.take(r.Context(), cl.caller.String(), size); err != nil {
		return nil, held, err
	}
	defer func() {
		if err != nil {
			held.release()
		}
	}()
	if err := readUntil(c, time.Now().Add(10*time.Second+time.Duration(size>>20)*slowestUpload)); err != nil {
		return nil, held, err
	}
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	}
	switch {
	case err != nil:
		return nil, held, badRequest("the body ended early")
	case int64(len(body)) > limit:
		return nil, held, tooLarge(limit)
	}
	// net/http goes on reading, to see the client hang up: the upload's deadline must not end the request in its handler.
	if err := readUntil(c, time.Time{}); err != nil {
		return nil, held, err
	}
	return body, held, nil
}

// readUntil sets the deadline for reading from the client; the zero time is none. The next request sets its own.
func readUntil(c echo.Context, deadline time.Time) error {
	err := http.NewResponseController(c.Response()).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the upload: %w", err)
	}
	return nil
}

// drain reads on what is left of a body, within bounds.
func drain(body io.Reader) {
	// Whoever sends more, or stops sending, loses the connection: there is nobody to report it to.
	_, _ = io.CopyN(io.Discard, body, maxDrained)
}

func tooLarge(limit int64) error {
	return failure{status: http.StatusRequestEntityTooLarge, name: payloadTooLarge, message: "the body has more than " + strconv.FormatInt(limit, 10) + " bytes"}
}
