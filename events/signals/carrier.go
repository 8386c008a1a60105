package signals

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
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// signalsChannel is the channel of NOTIFY on which signals travel between nodes.
const signalsChannel = "mlsd_signals"

// Bounds of signals. Signals over a bound are dropped and counted by reason.
const (
	signalsOfNode   = 200    // ciphertexts a second that a node accepts from its callers
	signalsBurst    = 100    // ciphertexts at once
	limitsKept      = 10_000 // callers and convos whose rate a node remembers
	offersOfNode    = 20_000 // signals a second that a node offers to subscriptions, counted once for each subscription
	lookUpsWaiting  = 100    // signals with cursors that wait until the node has looked up who sees them
	signalsWaiting  = 200    // signals that a node has accepted and not passed on yet
	signalEvery     = 20 * time.Millisecond
	movesEvery      = time.Second      // how often a node passes moved cursors on
	movesWaiting    = 10_000           // moved cursors that wait to be passed on
	movesLive       = 10 * time.Second // how long a moved cursor waits before it is dropped
	movesOfSignal   = 20               // cursors in one signal; with the longest DIDs they still fit into a NOTIFY
	signalsOfMoves  = 100              // signals with cursors that are passed on at the same time
	signalTimeout   = 2 * time.Second
	signalReconnect = time.Second
)

// How many ciphertexts a node accepts for one convo, and from one caller.
var (
	signalsOfConvo  = limit.Rate{PerSecond: 10, Burst: 20}
	signalsOfCaller = limit.Rate{PerSecond: 20, Burst: 40}
)

// Reasons why a signal is dropped, or a subscription does not get it.
const (
	DroppedBusy    = "busy"    // the node is busy, and messages come first
	DroppedRate    = "rate"    // the node accepts no more now, or no more from the caller
	DroppedConvo   = "convo"   // the node accepts no more for the convo
	DroppedOffline = "offline" // the node cannot reach the others
	DroppedLong    = "long"    // the signal does not fit into a NOTIFY
	DroppedBehind  = "behind"  // a subscription's buffer is more than half full
	DroppedFailed  = "failed"  // the node could not look up who sees a cursor
)

// DropReasons returns all reasons.
func DropReasons() []string {
	return []string{DroppedBusy, DroppedRate, DroppedConvo, DroppedOffline, DroppedLong, DroppedBehind, DroppedFailed}
}

// Metrics measures signals. Methods are safe for concurrent use.
type Metrics interface {
	Carried(signals int)          // ciphertexts that this node has passed on
	Dropped(reason string, n int) // dropped signals, or subscriptions that missed a signal
	Delivered(subscriptions int)  // subscriptions into whose buffers this node has put a signal
}

// Hub has the live subscriptions of this node. *events.Hub implements it.
type Hub interface {
	// Live returns the number of live subscriptions that members of a convo have here.
	Live(convo uuid.UUID) int
	// LiveDIDs returns the members of a convo that have live subscriptions here.
	LiveDIDs(convo uuid.UUID) []syntax.DID
	// OfferSignal offers a signal to each live subscription of a convo. of returns the signal for a
	// person, or nil. offered is the number of subscriptions that took a signal. behind is the
	// number of subscriptions that did not take it, because their buffers are more than half full.
	OfferSignal(convo uuid.UUID, of func(syntax.DID) *Signal) (offered, behind int)
}

// Viewers looks up which viewers see the cursors of which movers in a convo.
type Viewers func(ctx context.Context, convo uuid.UUID, movers,
	viewers []syntax.DID) (see func(viewer, mover syntax.DID) bool, err error)

// Config configures a Carrier.
type Config struct {
	DB      *pgxpool.Pool
	Hub     Hub
	Log     *slog.Logger
	Metrics Metrics
	Viewers Viewers
	Busy    func() bool      // reports whether the node is so busy that it drops signals
	Now     func() time.Time // nil means time.Now
}

// Carrier passes signals on to the members who are connected, on all nodes. It is safe for
// concurrent use. Run must run on every node.
type Carrier struct {
	cfg      Config
	taken    *rate.Limiter // ciphertexts from callers
	offers   *rate.Limiter // offers to subscriptions
	ofConvo  *limit.Buckets[uuid.UUID]
	ofCaller *limit.Buckets[syntax.DID]
	lookUps  chan lookUp // look-ups for moved cursors, because the listener must not wait for the database

	mu        sync.Mutex // guards the fields below
	online    bool       // Run is listening
	waiting   []*Signal
	moved     map[uuid.UUID]*convoMoves
	movers    int    // number of movers in moved
	interrupt func() // ends the wait for a notification; nil if Run does not wait
}

// NewCarrier returns a carrier.
func NewCarrier(c Config) *Carrier {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Carrier{
		cfg: c, taken: rate.NewLimiter(signalsOfNode, signalsBurst), offers: rate.NewLimiter(offersOfNode, offersOfNode),
		ofCaller: limit.NewBuckets[syntax.DID](limitsKept, c.Now), ofConvo: limit.NewBuckets[uuid.UUID](limitsKept, c.Now),
		moved: map[uuid.UUID]*convoMoves{}, lookUps: make(chan lookUp, lookUpsWaiting),
	}
}

// Run listens for signals of all nodes and passes on the signals of this node, until ctx ends.
func (c *Carrier) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.session(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Log.WarnContext(ctx, "signals are not passed on", "error", err)
		}
		worker.Pause(ctx, signalReconnect)
	}
}

// session passes signals on over one connection. It drops the signals that still wait when it ends,
// because nobody wants to know who typed before an outage.
func (c *Carrier) session(ctx context.Context) error {
	l, err := pgpool.Listen(ctx, c.cfg.DB, c.cfg.Log, `LISTEN mlsd_signals`)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	c.setOnline(true)
	defer c.setOnline(false)
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { c.runLookUps(looking) })
	defer looks.Wait()
	defer stop()
	var last passed
	for {
		wait, interrupted := c.wait(ctx, last)
		n, err := l.Next(interrupted, wait)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case n != nil:
			c.deliver(ctx, n.Payload)
		case wait == pgpool.ListenCheck && interrupted.Err() == nil: // the connection was silent for pgpool.ListenCheck
			if err := l.Ping(ctx); err != nil {
				return err
			}
		}
		if err := c.pass(ctx, l.Conn, &last); err != nil {
			return err
		}
	}
}

// passed is when Run last passed signals on, and moved cursors.
type passed struct{ signals, moves time.Time }

func (c *Carrier) setOnline(online bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.online = online
	if !online {
		if n := len(c.waiting); n > 0 {
			c.cfg.Metrics.Dropped(DroppedOffline, n)
		}
		c.waiting = nil
	}
}

// wait returns how long Run can wait for a notification. The returned context ends earlier if there
// is something to pass on.
func (c *Carrier) wait(ctx context.Context, last passed) (time.Duration, context.Context) {
	interrupted, interrupt := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake() // ends the context that the last call returned
	c.interrupt = interrupt
	wait, now := pgpool.ListenCheck, c.cfg.Now()
	if len(c.waiting) > 0 {
		wait = min(wait, last.signals.Add(signalEvery).Sub(now))
	}
	if c.movers > 0 {
		wait = min(wait, last.moves.Add(movesEvery).Sub(now))
	}
	return wait, interrupted
}
