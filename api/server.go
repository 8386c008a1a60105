// Package api is the public face of the server: XRPC over HTTP (https://atproto.com/specs/xrpc). A request passes, in this
// order, the rate limit of its IP address, service authentication, the rate limit of its DID, the body limit, decoding and
// validation against the lexicon, and its method's handler. There is one file per method: parse, call, encode.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"golang.org/x/time/rate"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/messages"
	"mlsd/push"
	"mlsd/welcome"
)

// Config is what the public listener is made of. All fields without a default are required.
type Config struct {
	DB       *pgxpool.Pool
	Auth     *serviceauth.Validator
	Writes   *idem.Store
	Messages *messages.Log
	Cursors  *convos.Cursors
	Welcomes welcome.Policy
	Desk     *welcome.Desk // with the policy of Welcomes
	Push     push.Policy
	Events   *events.Hub
	Tickets  *events.Tickets
	Metrics  *Metrics
	// Committed is called after each write that was committed. It must not block. Default: nobody wants to know.
	Committed func()
	Log       *slog.Logger

	ServiceDID syntax.DID
	PublicURL  string // where clients reach the service, as did.json and tickets state it
	Version    string // what _health answers
	Rates      Rates
	// IP tells a request's address. Default: the connection's, whatever headers say.
	IP echo.IPExtractor
}

// Server serves the public listener.
type Server struct {
	cfg      Config
	routes   map[string]mlsapi.Route[*call]
	handlers handlers
	byIP     *limiter
	byDID    *limiter
	openings *rate.Limiter // of streams
	echo     *echo.Echo

	smallBodies, largeBodies, smallAnswers, largeAnswers *budget
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.Committed == nil {
		cfg.Committed = func() {}
	}
	s := &Server{
		cfg:    cfg,
		routes: map[string]mlsapi.Route[*call]{},
		handlers: handlers{
			db: cfg.DB, log: cfg.Log, writes: cfg.Writes, messages: cfg.Messages, cursors: cfg.Cursors, welcomes: cfg.Welcomes, desk: cfg.Desk,
			push: cfg.Push, committed: cfg.Committed,
			streams: newStreams(subscribeTo(cfg.Events), defaultPace, cfg.Metrics, cfg.Log), tickets: cfg.Tickets, auth: cfg.Auth,
		},

		openings:     newOpenings(),
		smallBodies:  newBudget(smallRoom, smallRoomOfCaller),
		largeBodies:  newBudget(largeBodies, largeBodiesOfCaller),
		smallAnswers: newBudget(smallRoom, smallRoomOfCaller),
		largeAnswers: newBudget(largeAnswers, largeAnswersOfCaller),
	}
	var err error
	if s.byIP, err = newLimiter(cfg.Rates.IP, network); err != nil {
		return nil, err
	}
	if s.byDID, err = newLimiter(cfg.Rates.DID, func(did string) string { return did }); err != nil {
		return nil, err
	}
	s.handlers.byIP, s.handlers.byDID = s.byIP, s.byDID
	if s.handlers.socketURL, err = socketURL(cfg.PublicURL); err != nil {
		return nil, err
	}
	for _, route := range mlsapi.Routes[*call]() {
		s.routes[route.Method.NSID] = route
	}
	s.echo = s.build()
	return s, nil
}

// Drain waits until the last stream of events has ended. WebSockets are not among the requests that http.Server.Shutdown waits for.
// Streams end when the hub is closed, which comes first.
func (s *Server) Drain(ctx context.Context) error { return s.handlers.streams.drain(ctx) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

func (s *Server) build() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = s.cfg.IP
	if e.IPExtractor == nil {
		e.IPExtractor = echo.ExtractIPDirect() // echo's own default believes X-Forwarded-For
	}
	e.HTTPErrorHandler = s.writeError
	e.Use(
		identify(),
		s.observe,
		middleware.RecoverWithConfig(middleware.RecoverConfig{DisableErrorHandler: true, LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			s.cfg.Log.Error("panic", "error", err, "stack", string(stack))
			return err
		}}),
		middleware.CORSWithConfig(middleware.CORSConfig{
			Skipper: func(c echo.Context) bool { // no browser
				r := c.Request()
				return r.Method != http.MethodOptions && r.Header.Get(echo.HeaderOrigin) == ""
			},
			AllowOrigins:  []string{"*"},
			AllowMethods:  []string{http.MethodGet, http.MethodPost},
			AllowHeaders:  []string{"Authorization", "Content-Type", headerKey, headerLastEventID, "Atproto-Proxy", "Atproto-Accept-Labelers"},
			ExposeHeaders: []string{headerReplay, headerConflict, headerExpired, "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After", echo.HeaderXRequestID},
			MaxAge:        86400,
		}),
	)
	e.GET("/xrpc/_health", s.health)
	e.HEAD("/xrpc/_health", s.health)
	e.GET("/.well-known/did.json", s.didDocument)
	e.Any("/xrpc/:nsid", s.serve)
	e.RouteNotFound("/xrpc/*", func(echo.Context) error {
		return failure{status: http.StatusNotImplemented, name: methodNotImplemented, message: "no such method"}
	})
	e.RouteNotFound("/*", func(echo.Context) error {
		return failure{status: http.StatusNotFound, name: "NotFound", message: "no such page"}
	})
	return e
}

// health answers that the process is up; readiness is the admin listener's matter.
func (s *Server) health(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"version": s.cfg.Version})
}

// didDocument says where the service is (https://atproto.com/specs/did). It exists for did:web only: other DIDs have their
// documents elsewhere.
func (s *Server) didDocument(c echo.Context) error {
	if s.cfg.ServiceDID.Method() != "web" {
		return failure{status: http.StatusNotFound, name: "NotFound", message: "no such page"}
	}
	type service struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Endpoint string `json:"serviceEndpoint"`
	}
	return c.JSON(http.StatusOK, struct {
		Context []string  `json:"@context"`
		ID      string    `json:"id"`
		Service []service `json:"service"`
	}{
		Context: []string{"https://www.w3.org/ns/did/v1"},
		ID:      s.cfg.ServiceDID.String(),
		Service: []service{{ID: "#atproto_mls", Type: "AtprotoMlsService", Endpoint: s.cfg.PublicURL}},
	})
}

// PublicURL returns the URL that a did:web stands for: https, or http for localhost, the only host that may have a port. It
// is "" for any other DID.
func PublicURL(did syntax.DID) string {
	if did.Method() != "web" {
		return ""
	}
	host, err := url.PathUnescape(did.Identifier())
	if err != nil {
		return ""
	}
	if host == "localhost" || strings.HasPrefix(host, "localhost:") {
		return "http://" + host
	}
	return "https://" + host
}

// writeError is echo's error handler: everything that goes wrong leaves as {"error", "message"}.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	f := s.failureOf(c, err)
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
