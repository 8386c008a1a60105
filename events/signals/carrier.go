package signals

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// signalsChannel is the channel of NOTIFY on which signals travel between nodes.
const signalsChannel = "mlsd_signals"

const (
	offersOfNode    = 20_000 // signals a second that a node offers to subscriptions, counted once for each subscription
	lookUpsWaiting  = 100    // signals with cursors that wait until the node has looked up who sees them
	signalTimeout   = 2 * time.Second
	signalReconnect = time.Second
)

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
	cfg     Config
	queue   *queue
	offers  *rate.Limiter // offers to subscriptions
	lookUps chan lookUp   // look-ups for moved cursors, because the listener must not wait for the database
}

// lookUp is a signal with cursors. The node must look up who sees these cursors.
type lookUp struct {
	signal        *Signal
	subscriptions int // subscriptions of the members who are connected here
}

// NewCarrier returns a carrier.
func NewCarrier(c Config) *Carrier {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Carrier{
		cfg: c, queue: newQueue(c.Now, c.Metrics.Dropped), offers: rate.NewLimiter(offersOfNode, offersOfNode),
		lookUps: make(chan lookUp, lookUpsWaiting),
	}
}

// Busy reports whether the node drops signals now. If it does, Busy counts one dropped signal. A
// caller asks Busy before it does any work for a signal.
func (c *Carrier) Busy() bool {
	if !c.cfg.Busy() {
		return false
	}
	c.cfg.Metrics.Dropped(DroppedBusy, 1)
	return true
}

// Send passes on a ciphertext that its sender may send. It returns false if this node drops the
// ciphertext. It does not block.
func (c *Carrier) Send(signal Signal) bool {
	reason := c.queue.take(&signal)
	if reason != "" {
		c.cfg.Metrics.Dropped(reason, 1)
	}
	return reason == ""
}

// Moved tells the members who may see a cursor that the cursor has moved. It does not block.
func (c *Carrier) Moved(convo uuid.UUID, m Move) { c.queue.move(convo, m) }

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
	c.queue.setOnline(true)
	defer c.queue.setOnline(false)
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { c.runLookUps(looking) })
	defer looks.Wait()
	defer stop()
	var last passed
	for {
		wait, interrupted := c.queue.wait(ctx, last)
		n, err := l.Next(interrupted, wait)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case n != nil:
			c.deliver(ctx, n.Payload)
		case wait == pgpool.ListenCheck && interrupted.Err() == nil: // the connection was silent
			if err := l.Ping(ctx); err != nil {
				return err
			}
		}
		if err := c.pass(ctx, l.Conn, &last); err != nil {
			return err
		}
	}
}

// pass passes on the signals that are due. A busy node keeps moved cursors back for some seconds.
func (c *Carrier) pass(ctx context.Context, conn *pgx.Conn, last *passed) error {
	now := c.cfg.Now()
	var signals, moves []*Signal
	if !now.Before(last.signals.Add(signalEvery)) {
		if signals = c.queue.takeWaiting(); len(signals) > 0 {
			last.signals = now
		}
	}
	if !now.Before(last.moves.Add(movesEvery)) {
		c.queue.dropOldMoves()
		busy := c.cfg.Busy()
		if !busy {
			moves = c.queue.takeMoves()
		}
		if busy || len(moves) > 0 {
			last.moves = now
		}
	}
	if err := c.notify(ctx, conn, slices.Concat(signals, moves)); err != nil {
		lost := len(signals)
		for _, signal := range moves {
			lost += len(signal.Moves)
		}
		c.cfg.Metrics.Dropped(DroppedOffline, lost)
		return err
	}
	c.cfg.Metrics.Carried(len(signals))
	return nil
}

// notify passes signals on to all nodes, including this node.
func (c *Carrier) notify(ctx context.Context, conn *pgx.Conn, signals []*Signal) error {
	payloads, tooLong := pack(signals)
	if tooLong > 0 {
		c.cfg.Metrics.Dropped(DroppedLong, tooLong)
	}
	if len(payloads) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, `SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload`, signalsChannel,
		payloads)
	return errs.Wrap(err, "notify")
}

// deliver gives the signals of a notification to the subscriptions of this node.
func (c *Carrier) deliver(ctx context.Context, payload string) {
	signals, err := unpack(payload)
	if err != nil {
		c.cfg.Log.ErrorContext(ctx, "a signal cannot be read", "error", err)
		return
	}
	for _, signal := range signals {
		subscriptions := c.cfg.Hub.Live(signal.ConvoID)
		switch {
		case subscriptions == 0:
		case c.cfg.Busy():
			c.cfg.Metrics.Dropped(DroppedBusy, subscriptions)
		case !c.offers.AllowN(c.cfg.Now(), min(subscriptions, offersOfNode)):
			c.cfg.Metrics.Dropped(DroppedRate, subscriptions)
		case len(signal.Moves) > 0:
			select {
			case c.lookUps <- lookUp{signal, subscriptions}:
			default:
				c.cfg.Metrics.Dropped(DroppedRate, subscriptions)
			}
		default:
			c.deliverPayload(signal)
		}
	}
}

// deliverPayload gives a ciphertext to all members who are connected here, except members who have
// blocked its sender.
func (c *Carrier) deliverPayload(signal *Signal) {
	c.count(c.cfg.Hub.OfferSignal(signal.ConvoID, func(did syntax.DID) *Signal {
		if slices.Contains(signal.Hidden, did) {
			return nil
		}
		return signal
	}))
}

// runLookUps delivers moved cursors until ctx ends.
func (c *Carrier) runLookUps(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			c.dropLookUps()
			return
		case l := <-c.lookUps:
			c.deliverMoves(ctx, l)
		}
	}
}

// dropLookUps drops the signals that wait for a look-up.
func (c *Carrier) dropLookUps() {
	for {
		select {
		case l := <-c.lookUps:
			c.cfg.Metrics.Dropped(DroppedFailed, l.subscriptions)
		default:
			return
		}
	}
}

// deliverMoves gives moved cursors to the people who see them. If a look-up fails, it also drops
// the signals that wait for a look-up, because the database is busy.
func (c *Carrier) deliverMoves(ctx context.Context, l lookUp) {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	viewers := c.cfg.Hub.LiveDIDs(l.signal.ConvoID)
	see, err := c.cfg.Viewers(ctx, l.signal.ConvoID, l.signal.movers(), viewers)
	if err != nil {
		c.cfg.Log.WarnContext(ctx, "it could not be looked up who sees cursors", "error", err)
		c.cfg.Metrics.Dropped(DroppedFailed, l.subscriptions)
		c.dropLookUps()
		return
	}
	// Usually, every viewer sees all of the cursors. Such viewers share one signal, and its event.
	seen := map[syntax.DID]*Signal{}
	for _, viewer := range viewers {
		moves := slices.DeleteFunc(slices.Clone(l.signal.Moves), func(m Move) bool { return !see(viewer, m.DID) })
		switch len(moves) {
		case 0:
		case len(l.signal.Moves):
			seen[viewer] = l.signal
		default:
			seen[viewer] = &Signal{ConvoID: l.signal.ConvoID, Moves: moves}
		}
	}
	c.count(c.cfg.Hub.OfferSignal(l.signal.ConvoID, func(did syntax.DID) *Signal { return seen[did] }))
}

func (c *Carrier) count(offered, behind int) {
	c.cfg.Metrics.Delivered(offered)
	if behind > 0 {
		c.cfg.Metrics.Dropped(DroppedBehind, behind)
	}
}
