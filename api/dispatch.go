package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"mlsd/api/errorlist"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/limit"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tracing"
	"mlsd/people/accounts"
	"mlsd/people/quota"
	"mlsd/people/sessions"
)

// A request passes these checks, in this order: the rate limit of its IP address, service
// authentication, the rate limit of its DID, whether its account may use the node, the body limit,
// and the lexicon. Then its method's handler runs.

// Headers of idempotency. A PDS strips all of them, so nothing depends on them.
const (
	headerKey      = "Idempotency-Key"
	headerReplay   = "X-Idempotency-Replay"
	headerConflict = "X-Idempotency-Conflict"
	headerExpired  = "X-Idempotency-Expired"
)

// call is one request on its way through its handler.
type call struct {
	ctx    context.Context
	http   *httpRequest // only a stream writes to its response directly
	route  *route
	caller syntax.DID // the token's verified issuer
	// address is the client's IP address. An IPv6 address is cut to its /64.
	address string
	begun   time.Time
	// standing says why other methods would refuse the account's requests. It is nil if they would
	// not.
	standing *accounts.InactiveError
	token    *serviceauth.VerifiedToken // for a handler that uses the token up itself; nil if the caller has a session
	session  *sessions.Session          // nil if the caller has a service-auth token
	identity identity
	quota    *quota.Spending // the quotas that a write spends from
	cost     []quota.Cost    // what the write uses, besides its record
	db       *pgxpool.Pool   // the pool to read from, if the method may read from a standby; else nil

	answer    []byte
	usedKey   string // the key of the write's record; "" if the write has no record
	replayed  bool
	found     bool      // the answer to the COMMIT was lost, and answer was read from the record
	expired   bool      // the key was used before, and its record has expired
	bytes     *upload   // the body of a method whose input is bytes
	content   *download // the answer of a method whose output is bytes
	body      limit.Reservation
	bodyRead  bool              // nothing is left of the body, or the client does not send the rest
	reserved  limit.Reservation // of the answer, until it is written
	buffer    *[]byte           // of a large answer; giveBuffer returns it for the next one
	charged   int               // units besides the method's cost
	expensive *expensiveRequest // nil means that the request is not expensive

	proposedBytes int // size of the commit and its GroupInfo, in bytes
}

// serve answers one XRPC request. [Server.handle] lists the steps in their order.
func (s *Server) serve(c echo.Context) error {
	r := c.(*httpRequest) // observe has made it
	cl := &call{
		ctx: c.Request().Context(), http: r, address: limit.Network(c.RealIP()),
		begun: time.Now(),
	}
	r.call = cl
	err := s.handle(cl)
	s.charge(cl)
	if err != nil {
		if !c.Response().Committed {
			s.drain(cl)
		}
		return err
	}
	if c.Response().Committed { // a stream has written its own answer
		return nil
	}
	defer cl.releaseAnswer() // once the client has read the answer
	if cl.bytes != nil {
		s.drain(cl) // the rest of an attachment's part that is stored already is not read
	}
	if cl.content != nil {
		defer cl.content.close()
		return s.download(cl)
	}
	if cl.replayed {
		c.Response().Header().Set(headerReplay, "true")
	}
	return s.write(cl)
}

// handle takes a request through all checks to its handler.
func (s *Server) handle(cl *call) error {
	if err := s.handlers.rates.checkAddress(cl.http, cl.address); err != nil {
		return err
	}
	verified, err := s.admit(cl)
	subscription := err == nil && cl.route.Method.Kind == mlsapi.Subscription
	if subscription {
		err = s.stream(cl) // the handler authenticates the caller
	}
	if err != nil {
		if cl.caller == "" && !verified && chargesAddress(err) {
			s.handlers.rates.chargeAddress(cl.address)
		}
		return err
	}
	if subscription {
		return nil
	}
	if cl.route.Method.Streams {
		return s.stream(cl)
	}
	if cl.route.Method.BytesIn {
		return s.upload(cl)
	}
	var body []byte
	if cl.route.Method.HasInput {
		if body, err = s.readBody(cl); err != nil {
			cl.body.Release()
			return err
		}
		defer cl.body.Release()
		cl.spend(len(body) / unitBytes)
	}
	return s.call(cl, body)
}

// admit finds the route, checks the form of the request, and authenticates the caller. The handler
// of a subscription authenticates the caller itself. The caller's rate limit is checked before the
// token is used up, because using the token up writes a database row. verified says that the token
// was valid, even if a later check failed.
func (s *Server) admit(cl *call) (verified bool, err error) {
	r, name := cl.http.Request(), cl.http.Param("nsid")
	route, ok := s.routes[name]
	if !ok {
		return false, named(errorlist.MethodNotImplemented, "there is no method "+shown(name)+"; a newer server may have it")
	}
	cl.route = route
	if err := checkForm(cl.http, route.Method); err != nil {
		return false, err
	}
	if route.Method.Kind == mlsapi.Subscription {
		return false, nil
	}
	mayCall := func(did syntax.DID) error {
		err := s.handlers.mayCall(cl, did)
		// Anybody can have any number of DIDs, so a token of a DID that is not admitted does not
		// count as verified.
		verified = !errors.Is(err, accounts.ErrNotAdmitted)
		return err
	}
	ctx, span := tracing.Start(r.Context(), "auth")
	defer span.End()
	authorization := r.Header.Get(echo.HeaderAuthorization)
	if bearer, ok := sessions.Bearer(authorization); ok {
		err := s.handlers.admitSession(cl, bearer, mayCall)
		return verified, err
	}
	token, err := s.cfg.Auth.Validate(ctx, cl.address, authorization, syntax.NSID(name), route.token != reusable, mayCall)
	if err == nil && route.noSession && token.Stale {
		err = fmt.Errorf("%w: the key of %s is not known now", serviceauth.ErrUnavailable, token.Caller)
	}
	if err == nil && route.token == usedByDispatch {
		err = token.Use(ctx)
		verified = verified && !errors.Is(err, serviceauth.ErrReplayed)
	}
	if err != nil {
		return verified, err
	}
	cl.caller, cl.token = token.Caller, &token
	return true, nil
}

// mayCall returns an error unless a verified caller may send a request now. The rate limit is
// checked first, so that a caller who is refused cannot send more requests than other callers.
func (h *handlers) mayCall(c *call, did syntax.DID) (err error) {
	defer func() { c.identity.set(did, err, c.standing) }()
	if err := h.rates.take(c.http, did, c.route.cost); err != nil {
		return err
	}
	err = h.Gate.Check(c.ctx, did)
	if inactive, ok := find[*accounts.InactiveError](err); ok && slices.Contains(c.route.serves, inactive.Status) {
		c.standing, err = inactive, nil
	}
	if c.route.services && errors.Is(err, accounts.ErrNotAdmitted) {
		return nil
	}
	return err
}

// checkForm refuses a wrong HTTP method, repeated headers, and a body that is not plain JSON.
func checkForm(c echo.Context, method mlsapi.Method) error {
	if err := checkVerb(c, method); err != nil {
		return err
	}
	return single(c.Request().Header, echo.HeaderAuthorization)
}

// single refuses a header that is there more than once.
func single(h http.Header, name string) error {
	if len(h.Values(name)) > 1 {
		return badRequest("there is more than one " + name + " header")
	}
	return nil
}

func checkVerb(c echo.Context, method mlsapi.Method) error {
	r := c.Request()
	switch method.Kind {
	case mlsapi.Subscription:
		return checkUpgrade(c)
	case mlsapi.Query:
		if r.Method != http.MethodGet { // HEAD is refused too, because some queries claim a KeyPackage or open a lease
			return badRequest("the method is a query: use GET, not " + r.Method)
		}
		return nil
	}
	if r.Method != http.MethodPost {
		return badRequest("the method is a procedure: use POST, not " + r.Method)
	}
	if !method.HasInput && !method.BytesIn {
		return nil
	}
	if method.HasInput && !plainJSON(r.Header.Get(echo.HeaderContentType)) {
		return badRequest("Content-Type must be application/json, got " + shown(r.Header.Get(echo.HeaderContentType)))
	}
	if coding := r.Header.Get(echo.HeaderContentEncoding); coding != "" && coding != "identity" {
		return badRequest("Content-Encoding must be identity, got " + shown(coding))
	}
	return nil
}

// shown returns a header's value in quotes. A long value is cut. For an empty value it returns the
// word none.
func shown(value string) string {
	const longest = 64 // in bytes
	if value == "" {
		return "none"
	}
	return strconv.QuoteToASCII(value[:min(len(value), longest)])
}

func plainJSON(contentType string) bool {
	if contentType == echo.MIMEApplicationJSON { // nearly always
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == echo.MIMEApplicationJSON
}

// chargesAddress reports whether a request without a verified token is charged to its address. The
// address is charged if the client hangs up, or if the client's own host does not serve the DID
// document. It is not charged if the directory or our database failed, or if it was charged
// already.
func chargesAddress(err error) bool {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, serviceauth.ErrHost), errors.Is(err, serviceauth.ErrSpent),
		errors.Is(err, serviceauth.ErrRefresh):
		return true
	case errors.Is(err, events.ErrInvalidTicket), errors.Is(err, serviceauth.ErrUnavailable),
		errors.Is(err, serviceauth.ErrBusy),
		errors.As(err, new(limited)), errors.As(err, new(busy)):
		return false
	}
	return !pgpool.Unavailable(err)
}

// maxRequest bounds the time of a request after its body was read. A method's maxTime replaces it.
// The bound is below ten seconds, because a PDS then gives up. It does not cut off a COMMIT that
// has begun.
const maxRequest = 9 * time.Second

// call decodes the request and calls its handler. It first reserves memory for the answer. After
// the handler, the reservation shrinks to the answer's true size, except for a download. The
// reservation lasts until the client has read the answer.
func (s *Server) call(cl *call, body []byte) error {
	ctx, cancel := context.WithTimeout(cl.ctx, cmp.Or(cl.route.maxTime, maxRequest))
	defer cancel()
	cl.ctx = ctx
	if cl.route.expensive {
		if err := cl.beginExpensive(s.handlers.admission); err != nil {
			return err
		}
		defer cl.endExpensive()
	}
	n := cl.route.answerMemory
	pool := s.memory.answers
	if cl.route.Method.BytesOut {
		pool = s.memory.streams
	}
	answered := false
	defer func() {
		if !answered { // the handler refused or panicked
			cl.releaseAnswer()
		}
	}()
	if !pool.TryReserve(&cl.reserved, cl.client(), n, n) {
		err := cl.outside(func() error { return pool.Reserve(ctx, &cl.reserved, cl.client(), n, n) })
		if err != nil {
			return refused(err)
		}
	}
	var err error
	if cl.route.standby {
		err = s.read(cl)
	} else {
		err = cl.route.Serve(&s.handlers, cl, params(cl), body)
	}
	if cl.expired {
		cl.http.Response().Header().Set(headerExpired, "true")
	}
	if errors.Is(err, serviceauth.ErrReplayed) {
		s.handlers.rates.chargeAddress(cl.address)
	}
	if err != nil {
		return s.declared(cl.route, err)
	}
	if cl.content == nil {
		cl.reserved.Shrink(int64(cap(cl.answer)))
	}
	answered = true
	return nil
}

// read calls the handler of a method that only reads, with a standby or with the primary. If the
// standby fails, read calls the handler again with the primary. The caller then pays for the more
// expensive of the two calls.
func (s *Server) read(cl *call) error {
	before, highest := cl.charged, cl.charged
	err := s.cfg.Reads.Read(cl.ctx, func(ctx context.Context, db *pgxpool.Pool) error {
		cl.ctx, cl.db, cl.charged = ctx, db, before
		cl.giveBuffer()
		err := cl.route.Serve(&s.handlers, cl, params(cl), nil)
		highest = max(highest, cl.charged)
		return err
	})
	cl.charged = highest
	return err
}

// stream calls the handler of a method whose answer is a stream of events. It has no deadline and
// no memory reservation.
func (s *Server) stream(cl *call) error {
	return s.declared(cl.route, cl.route.Serve(&s.handlers, cl, params(cl), nil))
}

// params are the request's query parameters, nil if there are none.
func params(cl *call) url.Values {
	r := cl.http.Request()
	if r.URL.RawQuery == "" {
		return nil
	}
	return r.URL.Query()
}

// key returns the idempotency key of a request. field is the key in the request's input. It counts,
// and a header beside it does not: a browser may add a header of its own (D17).
func (c *call) key(field *string) (key string, err error) {
	defer func() { c.identity.key = key }()
	if field != nil {
		return *field, nil
	}
	headers := c.http.Request().Header
	header := headers.Get(headerKey)
	if header != "" && !lexcodec.ValidIdempotencyKey(header) {
		return "", lexcodec.Malformed(headerKey, lexcodec.KeyRule, header)
	}
	return header, single(headers, headerKey)
}

// keyAndConvo returns the idempotency key of the request, and the id of the convo that the request
// names.
func (c *call) keyAndConvo(field *string, text string) (key string, convo uuid.UUID, err error) {
	if key, err = c.key(field); err == nil {
		convo, err = c.convoID(text)
	}
	return key, convo, err
}

// smallAnswer is the initial size of an answer's buffer, in bytes. Most answers fit into it.
const smallAnswer = 512

// reply sets the answer.
func (c *call) reply(v lexcodec.Appender) error {
	c.answer = v.AppendJSON(make([]byte, 0, smallAnswer))
	return nil
}
