package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/errorlist"
	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/people/accounts"
)

// streams are the streams of events that this node serves: WebSockets (subscribeConvoEvents) and
// server-sent events (streamConvoEvents).
type streams struct {
	subscribe subscriber
	metrics   *Metrics
	log       *slog.Logger
	pace      pace
	delivery  delivery

	mu      sync.Mutex // guards the fields below
	running int        // number of goroutines and handlers
	open    map[*stream]struct{}
	until   time.Time     // deadline of all writes; zero unless the server is closing
	drained chan struct{} // closed when running becomes 0; nil unless drain waits
}

// subscriber begins a subscription. outdated says that events after the requested cursor are
// missing.
type subscriber func(context.Context, events.Request) (s subscription, outdated bool, err error)

// subscription is the part of events.Subscription that a stream uses.
type subscription interface {
	Next(context.Context) (*events.Event, error)
	Ready(context.Context) (*events.Event, error)
	More() *events.Event
	Park(ctx context.Context, wake func()) bool
	Wake()
	Request(context.Context) bool
	Began() int64
	Slow()
	Doubt()
	Trust()
	Close()
}

// batchBytes bounds the events that share a write: once the events have that many bytes, no further
// event joins them.
const batchBytes = 64 * kib

// another returns the next event for a write that already has n bytes. It returns nil if no event
// waits, or if the write is large enough.
func another(s subscription, n int) *events.Event {
	if n >= batchBytes {
		return nil
	}
	return s.More()
}

// subscribeTo returns the subscriber of a hub.
func subscribeTo(hub *events.Hub) subscriber {
	return func(ctx context.Context, r events.Request) (subscription, bool, error) {
		s, err := hub.Subscribe(ctx, r)
		if err != nil {
			return nil, false, err
		}
		return s, s.Outdated, nil
	}
}

// checked returns a subscriber that asks gate again once the subscription exists. The account can
// be blocked between the first check and the subscription: the block ends the account's
// subscriptions, but this one does not exist yet.
func checked(subscribe subscriber, gate Gate) subscriber {
	return func(ctx context.Context, r events.Request) (subscription, bool, error) {
		s, outdated, err := subscribe(ctx, r)
		if err != nil {
			return nil, false, err
		}
		if err := gate.Check(ctx, r.DID); err != nil {
			s.Close()
			return nil, false, err
		}
		return s, outdated, nil
	}
}

// pace says how fast a client must be.
type pace struct {
	write     time.Duration // time for one event
	perChunk  time.Duration // in addition, for each chunkSize bytes of the event
	hurry     time.Duration // time for all writes while the server is closing
	close     time.Duration // time for the closing handshake
	ping      time.Duration // time between two pings of a WebSocket
	pong      time.Duration // time for the answer to a ping
	keepAlive time.Duration // time between two comments in an event stream
	restart   time.Duration // period over which clients spread their reconnections to a restarting server
}

// chunkSize is the unit of pace.perChunk, in bytes.
const chunkSize = 256 * kib

var defaultPace = pace{
	write: 10 * time.Second, perChunk: time.Second, hurry: 2 * time.Second, close: 5 * time.Second,
	ping: 25 * time.Second, pong: 10 * time.Second, keepAlive: 15 * time.Second, restart: 5 * time.Second,
}

// allows returns the time that the client has for n bytes. After twice that time, the connection is
// cut.
func (p pace) allows(n int) time.Duration { return p.write + time.Duration(n/chunkSize)*p.perChunk }

// reconnect returns after how many milliseconds a client should reconnect. It is random, so that
// clients do not all come at once.
func (p pace) reconnect() int64 { return rand.Int64N(p.restart.Milliseconds() + 1) }

func newStreams(subscribe subscriber, p pace, metrics *Metrics, log *slog.Logger) *streams {
	return &streams{subscribe: subscribe, metrics: metrics, log: log, pace: p, open: map[*stream]struct{}{}}
}

// The reasons why a stream ends, besides the errors of package events and of the database.
var (
	errGone   = errors.New("the client has gone")
	errStuck  = errors.New("the client has stopped reading")
	errSilent = errors.New("the client does not answer pings")
	errSpoke  = errors.New("nothing is to be sent on this connection")
)

// reasonOf returns the name of a reason in metrics.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errGone):
		return "client"
	case errors.Is(err, errStuck), errors.Is(err, events.ErrConsumerTooSlow):
		return "too_slow"
	case errors.Is(err, errSilent):
		return "no_pong"
	case errors.Is(err, errSpoke):
		return "protocol"
	case errors.Is(err, events.ErrReplaced):
		return "replaced"
	case errors.Is(err, events.ErrClosing):
		return "restart"
	case accounts.IsRefusal(err):
		return "refused"
	case errors.As(err, new(*serviceauth.InvalidError)):
		return "session"
	}
	return "error"
}

// failed logs an error that is the server's fault, and returns the error name for it.
func (s *streams) failed(err error) string {
	if pgpool.Unavailable(err) {
		s.log.Warn("a stream has ended", "error", err)
		return errorlist.ServiceUnavailable
	}
	s.log.Error("a stream has ended", "error", err)
	return errorlist.InternalServerError
}

// run calls f in its own goroutine. A panic ends that goroutine only.
func (s *streams) run(f func()) {
	s.begun()
	go func() {
		defer s.ended()
		defer s.rescue()
		f()
	}()
}

// rescue logs a panic. It must be deferred.
func (s *streams) rescue() {
	if r := recover(); r != nil {
		s.log.Error("panic", "error", fmt.Sprint(r), "stack", string(debug.Stack()))
	}
}

// begun counts a goroutine or handler as running until ended is called.
func (s *streams) begun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *streams) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running == 0 && s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
}

// opened registers a stream until closed is called.
func (s *streams) opened(k *stream) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[k] = struct{}{}
	if !s.until.IsZero() {
		k.hurry(s.until)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, k)
	}
}

// drain waits until the last stream has ended. From now on, all writes together have pace.hurry.
func (s *streams) drain(ctx context.Context) error {
	s.mu.Lock()
	s.until = time.Now().Add(s.pace.hurry)
	for k := range s.open {
		k.hurry(s.until)
	}
	if s.running == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.drained == nil {
		s.drained = make(chan struct{})
	}
	drained := s.drained
	s.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// subscription begins a subscription.
func (s *streams) subscription(ctx context.Context, r events.Request) (subscription, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, maxRequest)
	defer cancel()
	return s.subscribe(ctx, r)
}

// request returns the request for a subscription. convos are the ids that the client names, nil if
// it names none.
func request(caller syntax.DID, device *string, cursor *events.Cursor, convos []string) (events.Request, error) {
	r := events.Request{DID: caller, Cursor: cursor}
	if device != nil {
		r.DeviceID = *device
	}
	if convos != nil {
		r.Convos = []uuid.UUID{}
	}
	for _, text := range convos {
		id, err := convoID(text)
		if err != nil {
			return r, err
		}
		r.Convos = append(r.Convos, id)
	}
	return r, nil
}
