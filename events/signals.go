package events

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"
)

// signalsChannel is the channel of NOTIFY on which signals travel between nodes.
const signalsChannel = "mlsd_signals"

// Bounds of signals. What is over them is dropped, and counted by its reason.
const (
	signalsOfNode   = 200    // ciphertexts a second that a node takes from its callers
	signalsBurst    = 100    // at once
	signalsOfConvo  = 10     // ciphertexts a second that a node takes for one convo
	burstOfConvo    = 20     // at once
	signalsOfCaller = 20     // ciphertexts a second that a node takes from one caller
	burstOfCaller   = 40     // at once
	convosLimited   = 10_000 // convos, and callers, whose rate a node remembers
	framesOfNode    = 20_000 // signals a second that a node puts into buffers, each counted once for each
	lookUpsWaiting  = 100    // signals with cursors that wait until it is looked up who sees them
	signalsWaiting  = 200    // that a node has taken and not passed on yet
	signalEvery     = 20 * time.Millisecond
	movesEvery      = time.Second      // how often moved cursors are passed on
	movesWaiting    = 10_000           // cursors that have moved and wait for that
	movesLive       = 10 * time.Second // what has waited for so long is dropped
	movesOfSignal   = 40               // cursors in one signal
	signalsOfMoves  = 50               // signals with cursors that are passed on at once
	signalTimeout   = 2 * time.Second
	signalReconnect = time.Second
)

// Reasons why a signal is dropped, or a subscription does not get it.
const (
	DroppedBusy    = "busy"    // the node has much to do: messages come first
	DroppedRate    = "rate"    // the node takes no more, or no more from the caller
	DroppedConvo   = "convo"   // the node takes no more for the convo
	DroppedOffline = "offline" // the node cannot reach the others
	DroppedLong    = "long"    // it does not fit into a NOTIFY
	DroppedBehind  = "behind"  // a subscription's buffer is more than half full
	DroppedFailed  = "failed"  // it could not be looked up who sees a cursor
)

// DropReasons are all of them.
func DropReasons() []string {
	return []string{DroppedBusy, DroppedRate, DroppedConvo, DroppedOffline, DroppedLong, DroppedBehind, DroppedFailed}
}

// SignalMetrics measures signals. Methods are safe for concurrent use.
type SignalMetrics interface {
	SignalsCarried(signals int)          // ciphertexts that this node has passed on
	SignalsDropped(reason string, n int) // signals, or subscriptions that do not get one
	SignalsDelivered(subscriptions int)  // into whose buffers this node has put one
}

// Viewers says which viewers see the cursors of movers in a convo.
type Viewers func(ctx context.Context, convo uuid.UUID, movers, viewers []syntax.DID) (see func(viewer, mover syntax.DID) bool, err error)

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
	db       *pgxpool.Pool
	hub      *Hub
	log      *slog.Logger
	metrics  SignalMetrics
	viewers  Viewers
	busy     func() bool
	now      func() time.Time
	taken    *rate.Limiter // ciphertexts from callers
	frames   *rate.Limiter // into buffers
	ofConvo  *lru.Cache[uuid.UUID, *rate.Limiter]
	ofCaller *lru.Cache[syntax.DID, *rate.Limiter]
	looked   chan lookUp // moved cursors beside the listener, which must not wait for the database

	mu        sync.Mutex // guards what follows
	online    bool       // Run listens
	waiting   []*Signal
	moved     map[uuid.UUID]*convoMoves
	movers    int    // in moved
	interrupt func() // ends the wait for a notification; nil: Run does not wait
}

// NewSignals returns Signals.
func NewSignals(c SignalsConfig) (*Signals, error) {
	s := &Signals{
		db: c.DB, hub: c.Hub, log: c.Log, metrics: c.Metrics, viewers: c.Viewers, busy: c.Busy, now: c.Now,
		taken: rate.NewLimiter(signalsOfNode, signalsBurst), frames: rate.NewLimiter(framesOfNode, framesOfNode),
		moved: map[uuid.UUID]*convoMoves{}, looked: make(chan lookUp, lookUpsWaiting),
	}
	if s.now == nil {
		s.now = time.Now
	}
	var err error
	if s.ofCaller, err = lru.New[syntax.DID, *rate.Limiter](convosLimited); err != nil {
		return nil, fmt.Errorf("make the limits of signals: %w", err)
	}
	if s.ofConvo, err = lru.New[uuid.UUID, *rate.Limiter](convosLimited); err != nil {
		return nil, fmt.Errorf("make the limits of signals: %w", err)
	}
	return s, nil
}

// Run listens for signals of all nodes and passes on those of this one, until ctx ends.
func (s *Signals) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.session(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "signals are not passed on", "error", err)
		}
		pause(ctx, signalReconnect)
	}
}

// session passes signals on over one connection. The signals that wait when it ends are dropped:
// nobody wants to know who typed before an outage.
func (s *Signals) session(ctx context.Context) error {
	beginning, cancel := context.WithTimeout(ctx, listenBegin)
	defer cancel()
	pooled, err := s.db.Acquire(beginning)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	conn := pooled.Hijack() // a listening connection must not return to the pool
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := conn.Close(closing); err != nil {
			s.log.DebugContext(ctx, "the connection of signals was closed already", "error", err)
		}
	}()
	if _, err := conn.Exec(beginning, `LISTEN `+signalsChannel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.setOnline(true)
	defer s.setOnline(false)
	looking, stop := context.WithCancel(ctx)
	var lookUps sync.WaitGroup
	lookUps.Go(func() { s.lookUp(looking) })
	defer lookUps.Wait()
	defer stop()
	var last passed
	for {
		wait, interrupted := s.wait(ctx, last)
		if err := s.await(interrupted, conn, wait); err != nil || ctx.Err() != nil {
			return err
		}
		if err := s.pass(ctx, conn, &last); err != nil {
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
			s.metrics.SignalsDropped(DroppedOffline, n)
		}
		s.waiting = nil
	}
}

// wait returns how long Run can wait for a notification, and a context that ends when something comes
// that is to be passed on sooner.
func (s *Signals) wait(ctx context.Context, last passed) (time.Duration, context.Context) {
	interrupted, interrupt := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake() // the context before
	s.interrupt = interrupt
	wait, now := listenCheck, s.now()
	if len(s.waiting) > 0 {
		wait = min(wait, last.signals.Add(signalEvery).Sub(now))
	}
	if s.movers > 0 {
		wait = min(wait, last.moves.Add(movesEvery).Sub(now))
	}
	return wait, interrupted
}

// await waits for a signal of any node, and delivers it.
func (s *Signals) await(ctx context.Context, conn *pgx.Conn, wait time.Duration) error {
	if wait <= 0 || ctx.Err() != nil {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		s.deliver(ctx, n.Payload)
		return nil
	case waiting.Err() == nil:
		return fmt.Errorf("listen: %w", err)
	case wait < listenCheck || ctx.Err() != nil:
		return nil
	}
	pinging, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if err := conn.Ping(pinging); err != nil && ctx.Err() == nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}
