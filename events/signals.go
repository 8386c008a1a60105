package events

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// Busy reports whether the node drops signals now, and counts one as dropped then. A caller asks
// before it spends anything on a signal.
func (s *Signals) Busy() bool {
	if !s.busy() {
		return false
	}
	s.metrics.SignalsDropped(DroppedBusy, 1)
	return true
}

// Send passes a ciphertext on, and reports whether it is not dropped here. The sender may send it.
// It does not block.
func (s *Signals) Send(signal Signal) bool {
	reason := s.take(&signal)
	if reason != "" {
		s.metrics.SignalsDropped(reason, 1)
	}
	return reason == ""
}

// take queues a ciphertext, or says why it is dropped.
func (s *Signals) take(signal *Signal) (reason string) {
	now := s.now()
	if !limitOf(s.ofCaller, signal.Sender, signalsOfCaller, burstOfCaller).AllowN(now, 1) {
		return DroppedRate
	}
	if !limitOf(s.ofConvo, signal.ConvoID, signalsOfConvo, burstOfConvo).AllowN(now, 1) {
		return DroppedConvo
	}
	if !s.taken.AllowN(now, 1) {
		return DroppedRate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.online:
		return DroppedOffline
	case len(s.waiting) >= signalsWaiting:
		return DroppedRate
	case signal.Nobody:
		return ""
	case len(s.waiting) == 0:
		s.wake()
	}
	s.waiting = append(s.waiting, signal)
	return ""
}

// limitOf returns the limit of one convo or caller.
func limitOf[K comparable](all *lru.Cache[K, *rate.Limiter], one K, perSecond rate.Limit, burst int) *rate.Limiter {
	if l, ok := all.Get(one); ok {
		return l
	}
	fresh := rate.NewLimiter(perSecond, burst)
	if other, raced, _ := all.PeekOrAdd(one, fresh); raced {
		return other
	}
	return fresh
}

// Moved says that a cursor has moved which other members may see. Moves of one cursor become one.
// It does not block.
func (s *Signals) Moved(convo uuid.UUID, m Move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.moved[convo]
	if waiting == nil {
		waiting = &convoMoves{since: s.now(), of: map[syntax.DID]Move{}}
	}
	before, again := waiting.of[m.DID]
	if !again && s.movers >= movesWaiting {
		s.metrics.SignalsDropped(DroppedRate, 1)
		return
	}
	s.moved[convo] = waiting
	if !again {
		s.movers++
	}
	m.Read, m.Delivered = max(m.Read, before.Read), max(m.Delivered, before.Delivered)
	waiting.of[m.DID] = m
	if s.movers == 1 {
		s.wake()
	}
}

// convoMoves are cursors of a convo that have moved.
type convoMoves struct {
	since time.Time // the first of them has moved
	of    map[syntax.DID]Move
}

// wake ends the wait of Run. The caller holds the lock.
func (s *Signals) wake() {
	if s.interrupt != nil {
		s.interrupt()
		s.interrupt = nil
	}
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

// pass passes on what is due. A busy node waits with moved cursors, for some seconds.
func (s *Signals) pass(ctx context.Context, conn *pgx.Conn, last *passed) error {
	now := s.now()
	var signals, moves []*Signal
	if !now.Before(last.signals.Add(signalEvery)) {
		if signals = s.takeWaiting(); len(signals) > 0 {
			last.signals = now
		}
	}
	if !now.Before(last.moves.Add(movesEvery)) {
		s.dropOldMoves()
		busy := s.busy()
		if !busy {
			moves = s.takeMoves()
		}
		if busy || len(moves) > 0 {
			last.moves = now
		}
	}
	if err := s.notify(ctx, conn, slices.Concat(signals, moves)); err != nil {
		return err
	}
	s.metrics.SignalsCarried(len(signals))
	return nil
}

// takeWaiting takes the ciphertexts that wait.
func (s *Signals) takeWaiting() (out []*Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.waiting = s.waiting, nil
	return out
}

// takeMoves takes moved cursors, but not those of all convos if there are many.
func (s *Signals) takeMoves() (out []*Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for convo, moves := range s.moved {
		for part := range slices.Chunk(slices.Collect(maps.Values(moves.of)), movesOfSignal) {
			out = append(out, &Signal{ConvoID: convo, Moves: part})
		}
		s.movers -= len(moves.of)
		delete(s.moved, convo)
		if len(out) >= signalsOfMoves {
			break
		}
	}
	return out
}

// dropOldMoves drops moved cursors that have waited too long, as on a node that is busy for long.
func (s *Signals) dropOldMoves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for convo, moves := range s.moved {
		if s.now().Sub(moves.since) >= movesLive {
			s.metrics.SignalsDropped(DroppedBusy, len(moves.of))
			s.movers -= len(moves.of)
			delete(s.moved, convo)
		}
	}
}

// notify passes signals on to all nodes, this one included.
func (s *Signals) notify(ctx context.Context, conn *pgx.Conn, signals []*Signal) error {
	payloads, tooLong := pack(signals)
	if tooLong > 0 {
		s.metrics.SignalsDropped(DroppedLong, tooLong)
	}
	if len(payloads) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, `SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload`, signalsChannel, payloads); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

// deliver gives the signals of a notification to the subscriptions of this node.
func (s *Signals) deliver(ctx context.Context, payload string) {
	signals, err := unpack(payload)
	if err != nil {
		s.log.ErrorContext(ctx, "a signal cannot be read", "error", err)
		return
	}
	for _, signal := range signals {
		viewers, subscriptions := s.hub.liveDIDs(signal.ConvoID)
		switch {
		case subscriptions == 0:
		case s.busy():
			s.metrics.SignalsDropped(DroppedBusy, subscriptions)
		case !s.frames.AllowN(s.now(), min(subscriptions, framesOfNode)):
			s.metrics.SignalsDropped(DroppedRate, subscriptions)
		case len(signal.Moves) > 0:
			select {
			case s.looked <- lookUp{signal, viewers}:
			default:
				s.metrics.SignalsDropped(DroppedRate, subscriptions)
			}
		default:
			s.deliverPayload(signal)
		}
	}
}

func (s *Signals) deliverPayload(signal *Signal) {
	e := signal.event()
	s.count(s.hub.offerSignal(signal.ConvoID, func(did syntax.DID) *Event {
		if slices.Contains(signal.Hidden, did) {
			return nil
		}
		return e
	}))
}

// lookUp is a signal with cursors, and the members who are connected here.
type lookUp struct {
	signal  *Signal
	viewers []syntax.DID
}

// lookUp delivers moved cursors until ctx ends. After a failure it drops all that wait: the database
// has other things to do.
func (s *Signals) lookUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.dropLookUps()
			return
		case l := <-s.looked:
			s.lookUpOne(ctx, l)
		}
	}
}

func (s *Signals) lookUpOne(ctx context.Context, l lookUp) {
	if !s.deliverMoves(ctx, l.signal, l.viewers) {
		s.dropLookUps()
	}
}

// dropLookUps drops the moved cursors that wait.
func (s *Signals) dropLookUps() {
	for {
		select {
		case l := <-s.looked:
			s.metrics.SignalsDropped(DroppedFailed, len(l.viewers))
		default:
			return
		}
	}
}

// deliverMoves gives moved cursors to those who see them, and reports whether that could be looked
// up. Nearly always all who share theirs see all, and share one event.
func (s *Signals) deliverMoves(ctx context.Context, signal *Signal, viewers []syntax.DID) bool {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	see, err := s.viewers(ctx, signal.ConvoID, signal.movers(), viewers)
	if err != nil {
		s.log.WarnContext(ctx, "it could not be looked up who sees cursors", "error", err)
		s.metrics.SignalsDropped(DroppedFailed, len(viewers))
		return false
	}
	all, part := signal.event(), map[syntax.DID]*Event{}
	for _, viewer := range viewers {
		seen := make([]Move, 0, len(signal.Moves))
		for _, m := range signal.Moves {
			if see(viewer, m.DID) {
				seen = append(seen, m)
			}
		}
		switch len(seen) {
		case 0:
		case len(signal.Moves):
			part[viewer] = all
		default:
			part[viewer] = (&Signal{ConvoID: signal.ConvoID, Moves: seen}).event()
		}
	}
	s.count(s.hub.offerSignal(signal.ConvoID, func(did syntax.DID) *Event { return part[did] }))
	return true
}

func (s *Signals) count(offered, behind int) {
	s.metrics.SignalsDelivered(offered)
	if behind > 0 {
		s.metrics.SignalsDropped(DroppedBehind, behind)
	}
}
