package signals

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"mlsd/internal/limit"
	"mlsd/internal/pgpool"
)

// Bounds of what a node takes from its callers. Signals over a bound are dropped and counted by
// reason.
const (
	signalsOfNode  = 200              // ciphertexts a second that a node accepts from its callers
	signalsBurst   = 100              // ciphertexts at once
	limitsKept     = 10_000           // callers and convos whose rate a node remembers
	signalsWaiting = 200              // signals that a node has accepted and not passed on yet
	movesWaiting   = 10_000           // moved cursors that wait to be passed on
	movesLive      = 10 * time.Second // how long a moved cursor waits before it is dropped
	movesOfSignal  = 20               // cursors in one signal; with the longest DIDs they still fit into a NOTIFY
	signalsOfMoves = 100              // signals with cursors that are passed on at the same time
	signalEvery    = 20 * time.Millisecond
	movesEvery     = time.Second // how often a node passes moved cursors on
)

// How many ciphertexts a node accepts for one convo, and from one caller.
var (
	signalsOfConvo  = limit.Rate{PerSecond: 10, Burst: 20}
	signalsOfCaller = limit.Rate{PerSecond: 20, Burst: 40}
)

// queue has the signals and the moved cursors of this node that wait to be passed on.
type queue struct {
	now      func() time.Time
	dropped  func(reason string, n int)
	taken    *rate.Limiter // ciphertexts from callers
	ofConvo  *limit.Buckets[uuid.UUID]
	ofCaller *limit.Buckets[syntax.DID]

	mu        sync.Mutex // guards the fields below
	online    bool       // the carrier is listening
	waiting   []*Signal
	moved     map[uuid.UUID]*convoMoves
	movers    int    // number of movers in moved
	interrupt func() // ends the wait for a notification; nil if the carrier does not wait
}

// convoMoves are the moved cursors of a convo.
type convoMoves struct {
	since time.Time // when the first cursor moved
	of    map[syntax.DID]Move
}

func newQueue(now func() time.Time, dropped func(reason string, n int)) *queue {
	return &queue{
		now: now, dropped: dropped, taken: rate.NewLimiter(signalsOfNode, signalsBurst),
		ofCaller: limit.NewBuckets[syntax.DID](limitsKept, now), ofConvo: limit.NewBuckets[uuid.UUID](limitsKept, now),
		moved: map[uuid.UUID]*convoMoves{},
	}
}

// take queues a ciphertext, or returns why the ciphertext is dropped.
func (q *queue) take(signal *Signal) (reason string) {
	if _, ok := q.ofCaller.Take(signal.Sender, signalsOfCaller, 1); !ok {
		return DroppedRate
	}
	if _, ok := q.ofConvo.Take(signal.ConvoID, signalsOfConvo, 1); !ok {
		return DroppedConvo
	}
	if !q.taken.AllowN(q.now(), 1) {
		return DroppedRate
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.online:
		return DroppedOffline
	case len(q.waiting) >= signalsWaiting:
		return DroppedRate
	case signal.Nobody:
		return ""
	case len(q.waiting) == 0:
		q.wake()
	}
	q.waiting = append(q.waiting, signal)
	return ""
}

// move queues a moved cursor. Several moves of one cursor become one move.
func (q *queue) move(convo uuid.UUID, m Move) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.moved[convo]
	if waiting == nil {
		waiting = &convoMoves{since: q.now(), of: map[syntax.DID]Move{}}
	}
	before, again := waiting.of[m.DID]
	if !again {
		if q.movers >= movesWaiting {
			q.dropped(DroppedRate, 1)
			return
		}
		if q.movers++; q.movers == 1 {
			q.wake()
		}
	}
	m.Read, m.Delivered = max(m.Read, before.Read), max(m.Delivered, before.Delivered)
	waiting.of[m.DID] = m
	q.moved[convo] = waiting
}

func (q *queue) setOnline(online bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.online = online
	if !online {
		if n := len(q.waiting); n > 0 {
			q.dropped(DroppedOffline, n)
		}
		q.waiting = nil
	}
}

// takeWaiting takes the ciphertexts that wait.
func (q *queue) takeWaiting() (out []*Signal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	out, q.waiting = q.waiting, nil
	return out
}

// takeMoves takes moved cursors. If many convos have moved cursors, it takes only some of the
// convos.
func (q *queue) takeMoves() (out []*Signal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for convo, moves := range q.moved {
		for part := range slices.Chunk(slices.Collect(maps.Values(moves.of)), movesOfSignal) {
			out = append(out, &Signal{ConvoID: convo, Moves: part})
		}
		q.movers -= len(moves.of)
		delete(q.moved, convo)
		if len(out) >= signalsOfMoves {
			break
		}
	}
	return out
}

// dropOldMoves drops moved cursors that have waited too long, because the node was busy.
func (q *queue) dropOldMoves() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for convo, moves := range q.moved {
		if q.now().Sub(moves.since) >= movesLive {
			q.dropped(DroppedBusy, len(moves.of))
			q.movers -= len(moves.of)
			delete(q.moved, convo)
		}
	}
}

// passed is when the carrier last passed signals on, and moved cursors.
type passed struct{ signals, moves time.Time }

// wait returns how long the carrier can wait for a notification. The returned context ends earlier
// if there is something to pass on.
func (q *queue) wait(ctx context.Context, last passed) (time.Duration, context.Context) {
	interrupted, interrupt := context.WithCancel(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wake() // ends the context that the last call returned
	q.interrupt = interrupt
	wait, now := pgpool.ListenCheck, q.now()
	if len(q.waiting) > 0 {
		wait = min(wait, last.signals.Add(signalEvery).Sub(now))
	}
	if q.movers > 0 {
		wait = min(wait, last.moves.Add(movesEvery).Sub(now))
	}
	return wait, interrupted
}

// wake ends the wait of the carrier. The caller holds the lock.
func (q *queue) wake() {
	if q.interrupt != nil {
		q.interrupt()
		q.interrupt = nil
	}
}
