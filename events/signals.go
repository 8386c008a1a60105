package events

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"mlsd/internal/limit"
	"mlsd/internal/worker"
)

// signalsChannel is the channel of NOTIFY on which signals travel between nodes.
const signalsChannel = "mlsd_signals"

// Bounds of signals. What is over them is dropped, and counted by its reason.
const (
	signalsOfNode   = 200    // ciphertexts a second that a node takes from its callers
	signalsBurst    = 100    // at once
	limitsKept      = 10_000 // callers whose rate a node remembers, and convos
	offersOfNode    = 20_000 // signals a second that a node offers to subscriptions, counted for each of them
	lookUpsWaiting  = 100    // signals with cursors that wait for a look-up of who sees them
	signalsWaiting  = 200    // that a node has taken and not passed on yet
	signalEvery     = 20 * time.Millisecond
	movesEvery      = time.Second      // how often moved cursors are passed on
	movesWaiting    = 10_000           // moved cursors that wait for that
	movesLive       = 10 * time.Second // how long a moved cursor waits until it is dropped
	movesOfSignal   = 20               // cursors in one signal: they fit into a NOTIFY with the longest DIDs
	signalsOfMoves  = 100              // signals with cursors that are passed on at once
	signalTimeout   = 2 * time.Second
	signalReconnect = time.Second
)

// Ciphertexts that a node takes for one convo, and from one caller.
var (
	signalsOfConvo  = limit.Rate{PerSecond: 10, Burst: 20}
	signalsOfCaller = limit.Rate{PerSecond: 20, Burst: 40}
)

// Reasons why a signal is dropped, or a subscription does not get it.
const (
	DroppedBusy    = "busy"    // the node has much to do: messages come first
	DroppedRate    = "rate"    // the node takes no more at present, or no more from the caller
	DroppedConvo   = "convo"   // the node takes no more for the convo
	DroppedOffline = "offline" // the node cannot reach the others
	DroppedLong    = "long"    // it does not fit into a NOTIFY
	DroppedBehind  = "behind"  // a subscription's buffer is more than half full
	DroppedFailed  = "failed"  // who sees a cursor could not be looked up
)

// DropReasons returns all reasons.
func DropReasons() []string {
	return []string{DroppedBusy, DroppedRate, DroppedConvo, DroppedOffline, DroppedLong, DroppedBehind, DroppedFailed}
}

// SignalMetrics measures signals. Methods are safe for concurrent use.
type SignalMetrics interface {
	SignalsCarried(signals int)          // ciphertexts that this node has passed on
	SignalsDropped(reason string, n int) // signals, or subscriptions that do not get one
	SignalsDelivered(subscriptions int)  // into whose buffers this node has put one
}

// Viewers looks up which viewers see the cursors of which movers in a convo.
type Viewers func(ctx context.Context, convo uuid.UUID, movers,
	viewers []syntax.DID) (see func(viewer, mover syntax.DID) bool, err error)

// SignalsConfig configures Signals.
type SignalsConfig struct {
	DB      *pgxpool.Pool
	Hub     *Hub
	Log     *slog.Logger
	Metrics SignalMetrics
	Viewers Viewers
	Busy    func() bool      // the node has so much to do that signals are dropped
	Now     func() time.Time // default: time.Now
}

// Signals passes signals on to the members who are connected, on all nodes. A signal travels in a
// NOTIFY, on a connection of its own: a NOTIFY takes a lock of the whole database when its
// transaction commits, so it must never be in the transaction of a message. Nothing of a signal is
// written to a table, a WAL or a log.
//
// Signals are safe for concurrent use. Run must run on every node.
type Signals struct {
	cfg      SignalsConfig
	taken    *rate.Limiter // ciphertexts from callers
	offers   *rate.Limiter // to subscriptions
	ofConvo  *limit.Buckets[uuid.UUID]
	ofCaller *limit.Buckets[syntax.DID]
	lookUps  chan lookUp // of moved cursors: the listener must not wait for the database

	mu        sync.Mutex // guards what follows
	online    bool       // Run listens
	waiting   []*Signal
	moved     map[uuid.UUID]*convoMoves
	movers    int    // in moved
	interrupt func() // ends the wait for a notification; nil: Run does not wait
}

// NewSignals returns Signals.
func NewSignals(c SignalsConfig) *Signals {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Signals{
		cfg: c, taken: rate.NewLimiter(signalsOfNode, signalsBurst), offers: rate.NewLimiter(offersOfNode, offersOfNode),
		ofCaller: limit.NewBuckets[syntax.DID](limitsKept, c.Now), ofConvo: limit.NewBuckets[uuid.UUID](limitsKept, c.Now),
		moved: map[uuid.UUID]*convoMoves{}, lookUps: make(chan lookUp, lookUpsWaiting),
	}
}

// Run listens for signals of all nodes and passes on those of this one, until ctx ends.
func (s *Signals) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.session(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "signals are not passed on", "error", err)
		}
		worker.Pause(ctx, signalReconnect)
	}
}

// session passes signals on over one connection. The signals that wait when it ends are dropped:
// nobody wants to know who typed before an outage.
func (s *Signals) session(ctx context.Context) error {
	l, err := newListener(ctx, s.cfg.DB, s.cfg.Log, `LISTEN mlsd_signals`)
	if err != nil {
		return err
	}
	defer l.close(ctx)
	s.setOnline(true)
	defer s.setOnline(false)
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { s.runLookUps(looking) })
	defer looks.Wait()
	defer stop()
	var last passed
	for {
		wait, interrupted := s.wait(ctx, last)
		n, err := l.next(interrupted, wait)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case n != nil:
			s.deliver(ctx, n.Payload)
		case wait == listenCheck && interrupted.Err() == nil: // it was silent for listenCheck
			if err := l.ping(ctx); err != nil {
				return err
			}
		}
		if err := s.pass(ctx, l.conn, &last); err != nil {
			return err
		}
	}
}

// passed is when Run last passed signals on, and moved cursors.
type passed struct{ signals, moves time.Time }

func (s *Signals) setOnline(online bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.online = online
	if !online {
		if n := len(s.waiting); n > 0 {
			s.cfg.Metrics.SignalsDropped(DroppedOffline, n)
		}
		s.waiting = nil
	}
}

// wait returns how long Run can wait for a notification. The context that it returns ends earlier
// if there is something to pass on.
func (s *Signals) wait(ctx context.Context, last passed) (time.Duration, context.Context) {
	interrupted, interrupt := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake() // ends the context of the last call
	s.interrupt = interrupt
	wait, now := listenCheck, s.cfg.Now()
	if len(s.waiting) > 0 {
		wait = min(wait, last.signals.Add(signalEvery).Sub(now))
	}
	if s.movers > 0 {
		wait = min(wait, last.moves.Add(movesEvery).Sub(now))
	}
	return wait, interrupted
}
