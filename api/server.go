package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"mlsd/api/errorlist"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/requests"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/ratelog"
	"mlsd/internal/serviceauth"
	"mlsd/internal/standby"
	"mlsd/internal/tracing"
	"mlsd/messages"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

// Sender appends messages. *messages.Log implements it.
type Sender interface {
	Send(ctx context.Context, d messages.Draft) (messages.Receipt, error)
}

// Signaller passes signals on. *signals.Carrier implements it, and passes signals to all nodes.
type Signaller interface {
	// Busy reports whether signals are dropped now.
	Busy() bool
	// Send passes a signal on, and reports whether it did. The caller has checked that the sender
	// may send it.
	Send(s signals.Signal) bool
}

// Gate says who may use the node. *accounts.Gate implements it, and reads the database.
type Gate interface {
	// Check returns an error unless the account may use the node now.
	Check(ctx context.Context, did syntax.DID) error
	// Withheld returns the accounts among dids that may not use the node, in the order of dids.
	Withheld(ctx context.Context, dids []syntax.DID) ([]syntax.DID, error)
	// Percent returns the account's percentage of the usual rate of requests.
	Percent(did syntax.DID) int
}

// Config is what the public listener uses. All fields without a default are required.
type Config struct {
	DB *pgxpool.Pool
	// Reads chooses the database server for methods that may read from a standby.
	Reads *standby.Reads
	Auth  *serviceauth.Validator
	// Sessions keeps the sessions that clients get for service-auth tokens.
	Sessions *sessions.Service
	Writes   *idem.Store
	// Quotas counts what callers use.
	Quotas   *quota.Counter
	Messages Sender
	Cursors  *convos.Cursors
	Welcomes *welcome.Service
	Push     push.Policy
	// Signals passes on events that are not stored.
	Signals Signaller
	// EpochWindow is how many epochs a signal may be behind the convo's epoch.
	EpochWindow int64
	// Attachments stores attachments. Default: the attachment methods answer MethodNotImplemented.
	Attachments *attachments.Service
	// AttachmentDeleted is called after an attachment was deleted. It must not block.
	AttachmentDeleted func()
	Events            *events.Hub
	Tickets           *events.Tickets
	Metrics           *Metrics
	// Gate says who may use the node.
	Gate Gate
	// Erasures creates the jobs that erase accounts.
	Erasures *erasure.Store
	// Erasing is called after an erasure has begun. From then on, the node must refuse the account.
	// Erasing must not block.
	Erasing func()
	// ReportKey is the public key for sealing reports of abuse. Default: the node accepts no
	// reports.
	ReportKey *reports.PublicKey
	// Heads signs the heads of logs.
	Heads *transparency.Service
	// Network is this service's part in the network of services. It signs receipts, and verifies the
	// receipts of other services. Required.
	Network *network.Service
	// Lifetimes are the lifetimes of idempotency records, by method. Default: the result of
	// [Lifetimes].
	Lifetimes idem.Lifetimes
	// Committed is called after each committed write. It must not block.
	Committed func()
	// Answered is called for each request of a method, once the answer was written. It must not
	// block.
	Answered func(requests.Request)
	// Tracer creates the spans of requests. Default: no spans.
	Tracer *tracing.Tracer
	// Log gets a bounded number of lines that unauthenticated callers cause: see [ratelog.New].
	Log *slog.Logger

	ServiceDID syntax.DID
	PublicURL  string // where clients reach the service; did.json and tickets state it
	Version    string // the version that _health states
	Rates      Rates
	// IP finds the address of a request. Default: the address of the connection, whatever the
	// headers say.
	IP echo.IPExtractor
	// Proxies are the networks of the operator's proxies, whose health checks have no limit.
	Proxies []netip.Prefix
}

// Server serves the public listener.
type Server struct {
	cfg      Config
	routes   map[string]*route
	handlers handlers
	memory   memory
	// bounded is the log for lines that unauthenticated callers can cause.
	bounded *slog.Logger
	echo    *echo.Echo
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	bounded := ratelog.New(cfg.Log)
	if err := cfg.Rates.check(); err != nil {
		return nil, err
	}
	url, err := socketURL(cfg.PublicURL)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:    cfg,
		routes: routes(cfg.Lifetimes),
		handlers: handlers{
			Config: cfg, log: bounded, socketURL: url,
			streams: newStreams(checked(subscribeTo(cfg.Events), cfg.Gate), defaultPace, cfg.Metrics, cfg.Log),
			rates:   newLimiter(cfg.Rates, cfg.Gate.Percent, cfg.Proxies), openings: newOpenings(),
			admission: newAdmission(int(cfg.DB.Config().MaxConns), cfg.Metrics),
			places:    newPlaces(runtime.GOMAXPROCS(0)), finders: newFinders(),
		},
		memory:  newMemory(),
		bounded: bounded,
	}
	s.echo = s.build()
	return s, nil
}

// Drain waits until the last stream of events has ended. Close the hub first, because that ends the
// streams. http.Server.Shutdown does not wait for WebSockets.
func (s *Server) Drain(ctx context.Context) error { return s.handlers.streams.drain(ctx) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

func (s *Server) build() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = s.cfg.IP
	if e.IPExtractor == nil {
		e.IPExtractor = echo.ExtractIPDirect() // echo's default believes X-Forwarded-For
	}
	e.HTTPErrorHandler = s.writeError
	// echo would put the chain together for each request anew.
	chain := echo.HandlerFunc(func(c echo.Context) error { return c.Handler()(c) })
	for _, around := range []echo.MiddlewareFunc{ // the innermost first
		middleware.CORSWithConfig(middleware.CORSConfig{
			Skipper: func(c echo.Context) bool { // the client is no browser
				r := c.Request()
				return r.Method != http.MethodOptions && r.Header.Get(echo.HeaderOrigin) == ""
			},
			AllowOrigins: []string{"*"},
			AllowMethods: []string{http.MethodGet, http.MethodPost},
			AllowHeaders: []string{"Authorization", "Content-Type", headerKey, headerRange, headerLastEventID,
				"Atproto-Proxy", "Atproto-Accept-Labelers"},
			ExposeHeaders: []string{headerReplay, headerConflict, headerExpired, "RateLimit-Limit",
				"RateLimit-Remaining", "RateLimit-Reset", "Retry-After", "Date", echo.HeaderXRequestID, headerContentRange},
			MaxAge: 86400,
		}),
		middleware.RecoverWithConfig(middleware.RecoverConfig{DisableErrorHandler: true,
			LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
				s.cfg.Log.Error("panic", "error", err, "stack", string(stack))
				return err
			}}),
		s.observe,
		identify(),
	} {
		chain = around(chain)
	}
	e.Use(func(echo.HandlerFunc) echo.HandlerFunc { return chain })
	page := s.handlers.rates.page
	e.GET("/xrpc/_health", page(s.health))
	e.HEAD("/xrpc/_health", page(s.health))
	e.GET("/.well-known/did.json", page(s.didDocument))
	e.Any("/xrpc/:nsid", s.serve)
	e.RouteNotFound("/xrpc/*", page(func(echo.Context) error {
		return named(errorlist.MethodNotImplemented, "no such method")
	}))
	e.RouteNotFound("/*", page(func(echo.Context) error {
		return failure{status: http.StatusNotFound, name: "NotFound", message: "no such page"}
	}))
	return e
}

// writeError is echo's error handler: every error is answered as {"error", "message"}.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	f := s.failureOf(c, err)
	f.setHeaders(c.Response().Header())
	body, err := json.Marshal(struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		more
	}{f.name, f.message, f.more})
	if err == nil {
		err = c.JSONBlob(f.status, body)
	}
	if err != nil && !errors.Is(err, http.ErrHandlerTimeout) {
		s.cfg.Log.Debug("the answer could not be written", "error", err)
	}
}

// httpRequest is echo's context of a request, with what the handler and observe share.
type httpRequest struct {
	echo.Context
	call *call // nil if the request calls no method, such as _health
	// streamed is when the request's stream began, or zero if it has no stream. The request's
	// duration ends at that time, because the client decides how long a stream lasts.
	streamed time.Time
}

// processingTime returns the time since begun. For a stream, it returns the time until the stream
// began.
func (r *httpRequest) processingTime(begun time.Time) time.Duration {
	if !r.streamed.IsZero() {
		return r.streamed.Sub(begun)
	}
	return time.Since(begun)
}

// maxRequestID is the longest X-Request-Id that is accepted from a client, in characters.
const maxRequestID = 64

// requestIDChars are the characters that a client's X-Request-Id may have: the characters of UUIDs,
// trace ids and paths. None of them has a meaning in a log line or a page.
const requestIDChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/+=@"

// usableRequestID reports whether a client's X-Request-Id is short enough and has only
// requestIDChars.
func usableRequestID(id string) bool {
	return id != "" && len(id) <= maxRequestID &&
		!strings.ContainsFunc(id, func(r rune) bool { return !strings.ContainsRune(requestIDChars, r) })
}

// identify gives each request an id, for the log and the answer. The id is the client's
// X-Request-Id, or is made here.
func identify() echo.MiddlewareFunc {
	process, serial := rand.Text()[:10]+"-", new(atomic.Uint64)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			id := c.Request().Header.Get(echo.HeaderXRequestID)
			if !usableRequestID(id) {
				id = string(strconv.AppendUint(append(make([]byte, 0, 32), process...), serial.Add(1), 36))
			}
			c.Response().Header().Set(echo.HeaderXRequestID, id)
			return next(c)
		}
	}
}

// trace begins the request's span, if it is traced.
func (s *Server) trace(c echo.Context, name string) tracing.Span {
	r := c.Request()
	ctx, span := s.cfg.Tracer.Request(r.Context(), name, r.Header)
	if span.Traced() {
		c.SetRequest(r.WithContext(ctx))
	}
	return span
}

// observe reports the outcome of each request to the metrics, the span, the recorder and the log.
// DIDs are not logged.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		begun, nsid := time.Now(), otherMethod
		if route := s.routes[c.Param("nsid")]; route != nil {
			nsid = route.Method.NSID
		}
		span := s.trace(c, nsid)
		var f failure
		r := &httpRequest{Context: c}
		if err := next(r); err != nil {
			f = s.failureOf(c, err)
			c.Error(f)
		}
		q := s.outcome(r, begun, f, span.TraceID())
		s.cfg.Metrics.observe(&q)
		endSpan(span, &q)
		if r.call != nil { // the request calls a method, not _health, did.json or an unknown page
			s.cfg.Answered(q)
		}
		if !s.cfg.Log.Enabled(c.Request().Context(), slog.LevelDebug) {
			return nil
		}
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelDebug, "request", slog.String("nsid", q.NSID),
			slog.Int("status", q.Status), slog.String("error", q.Error), slog.Duration("took", q.Took),
			slog.String("request", q.ID), slog.String("trace", q.Trace))
		return nil
	}
}

// endSpan ends the request's span. The span's texts come from tables, never from the caller.
func endSpan(span tracing.Span, q *requests.Request) {
	span.Number("http.response.status_code", q.Status)
	if q.Error != "" {
		span.Failed(q.Error)
	}
	span.EndAt(q.At)
}
