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

	"mlsd/events"
	"mlsd/internal/pgpool"
)

// streams are the streams of events that this node serves: WebSockets (subscribeConvoEvents), and answers that go on
// (streamConvoEvents).
type streams struct {
	subscribe  subscriber
	metrics    *Metrics
	log        *slog.Logger
	pace       pace
	pings      *pacer
	keepAlives *pacer

	mu      sync.Mutex // guards what follows
	running int        // goroutines and handlers
	open    map[sender]struct{}
	until   time.Time     // when everything has to be sent; zero: the server does not end
	drained chan struct{} // closed when none runs any more; nil: nobody waits for that
}

// subscriber begins a subscription, and says whether its cursor is older than what is kept.
type subscriber func(context.Context, events.Request) (s subscription, outdated bool, err error)

// subscription is what events.Subscription is to a stream.
type subscription interface {
	Next(context.Context) (*events.Event, error)
	Slow()
	Doubt()
	Trust()
	Close()
}

// subscribeTo is the subscriber of a hub.
func subscribeTo(hub *events.Hub) subscriber {
	return func(ctx context.Context, r events.Request) (subscription, bool, error) {
		s, err := hub.Subscribe(ctx, r)
		if err != nil {
			return nil, false, err
		}
		return s, s.Outdated, nil
	}
}

// pace is how fast a client has to be.
type pace struct {
	write     time.Duration // for an event, and
	perChunk  time.Duration // for each 256 KiB of it; after twice as long the connection is cut
	hurry     time.Duration // for all that is being sent when the server is about to end
	close     time.Duration // for the close handshake
	ping      time.Duration // between two pings of a WebSocket
	pong      time.Duration // for their answers
	keepAlive time.Duration // between two comments in an event stream
	restart   time.Duration // a client waits up to this long before it comes back to a server that restarts
}

var defaultPace = pace{
	write: 10 * time.Second, perChunk: time.Second, hurry: 2 * time.Second, close: 5 * time.Second,
	ping: 25 * time.Second, pong: 10 * time.Second, keepAlive: 15 * time.Second, restart: 5 * time.Second,
}

// allows is how long the client may take for n bytes.
func (p pace) allows(n int) time.Duration { return p.write + time.Duration(n>>18)*p.perChunk }

// comeBack is when a client should: not all at once.
func (p pace) comeBack() int64 { return rand.Int64N(p.restart.Milliseconds() + 1) }

func newStreams(subscribe subscriber, p pace, metrics *Metrics, log *slog.Logger) *streams {
	s := &streams{subscribe: subscribe, metrics: metrics, log: log, pace: p, open: map[sender]struct{}{}}
	s.pings, s.keepAlives = newPacer(p.ping, s.run), newPacer(p.keepAlive, s.run)
	return s
}

// Why a stream ends, besides events' errors and the database's.
var (
	errGone   = errors.New("the client has gone")
	errStuck  = errors.New("the client has stopped reading")
	errSilent = errors.New("the client does not answer pings")
	errSpoke  = errors.New("nothing is to be sent on this connection")
)

// reasonOf is what the metrics call it.
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
	case errors.Is(err, events.ErrClosing):
		return "restart"
	}
	return "error"
}

// failed logs what no client can help, and returns the name of the error for it.
func (s *streams) failed(err error) string {
	if pgpool.Unavailable(err) {
		s.log.Warn("a stream has ended", "error", err)
		return serviceUnavailable
	}
	s.log.Error("a stream has ended", "error", err)
	return internalServerError
}

// run calls f in a goroutine of its own. If it panics, that is the end of it and of nothing else.
func (s *streams) run(f func()) {
	s.enter()
	go func() {
		defer s.leave()
		defer s.rescue()
		f()
	}()
}

// rescue is to be deferred.
func (s *streams) rescue() {
	if r := recover(); r != nil {
		s.log.Error("panic", "error", fmt.Sprint(r), "stack", string(debug.Stack()))
	}
}

func (s *streams) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *streams) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running == 0 && s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
}

// sender is a stream that may be sending something. hurry has that end by the deadline, or with the connection.
type sender interface{ hurry(deadline time.Time) }

// opened notes a stream until closed is called.
func (s *streams) opened(k sender) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[k] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, k)
	}
}

// deadline is when something has to be sent that may take until then.
func (s *streams) deadline(then time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.until.IsZero() && s.until.Before(then) {
		return s.until
	}
	return then
}

// drain waits until no stream is served any more. What is being sent has little time left.
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

// subscription begins what the request asks for.
func (s *streams) subscription(ctx context.Context, r events.Request) (subscription, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, maxRequest)
	defer cancel()
	return s.subscribe(ctx, r)
}

// request is what a subscription asks for. convos are the ids that it names, if it names any; what is no id names no convo, and
// nothing ever concerns it.
func request(caller syntax.DID, device *string, cursor *int64, convos []string) events.Request {
	r := events.Request{DID: caller, Cursor: cursor}
	if device != nil {
		r.DeviceID = *device
	}
	if convos != nil {
		r.Convos = []uuid.UUID{}
	}
	for _, text := range convos {
		if id, err := convoID(text); err == nil {
			r.Convos = append(r.Convos, id)
		}
	}
	return r
}
