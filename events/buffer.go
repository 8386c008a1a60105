package events

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// buffer is the hub's side of a subscription: which events it gets, and the events that its reader
// has not taken yet.
type buffer struct {
	did    syntax.DID
	device string      // device that counts as connected while the subscription is live; "" means none
	named  string      // device that the client named, or ""
	only   []uuid.UUID // convos whose events it gets; nil means all
	// resumed says that the subscription began at a cursor. Without a cursor, it delivers no event
	// from before it began.
	resumed bool

	large atomic.Int64 // bytes of the hub's large that this subscription has; set by holdLarge
	share *share

	// Protected by the registry's lock.
	from    int64                  // the hub offers only events after this place
	convos  map[uuid.UUID]struct{} // if live, the convos at the hub's head
	doubted bool                   // the reader may no longer be connected

	mu     sync.Mutex // guards the fields below; locked after the registry's lock
	live   bool       // the hub puts events into queue; written under both locks
	queue  []*Event
	one    [1]*Event     // the memory of a short queue
	queued int           // cost of the events in queue, in bytes
	place  int64         // if not live, events up to this place have been read from the table
	behind time.Time     // since when it catches up after its queue was full; zero if it does not
	failed error         // why it has ended; nil if it has not
	ready  chan struct{} // signalled when queue, live or failed has changed
	parked func()        // called instead of a signal on ready; nil if the reader has not parked
}

// share is what the subscriptions of one DID can use together.
type share struct {
	reading chan struct{} // has one slot, so one subscription reads the table at a time
}

// wants reports whether the request asks for events of a convo. The zero id means events that
// concern no convo.
func (b *buffer) wants(convo uuid.UUID) bool {
	return b.only == nil || slices.Contains(b.only, convo)
}

// offerSignal puts a signal into a buffer of size bytes, if at least half of the buffer is free. The
// caller holds the registry's lock.
func (b *buffer) offerSignal(e *Event, size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil || 2*(b.queued+e.cost()) > size {
		return false
	}
	b.queue = append(b.queue, e)
	b.queued += e.cost()
	b.notify()
	return true
}

// pop takes the first event out of the queue. The caller holds mu.
func (b *buffer) pop() *Event {
	e := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.queued -= e.cost()
	if len(b.queue) == 0 {
		b.queue = b.one[:0] // an idle subscription keeps no more memory
	}
	return e
}

// excuse adds the time from began to now to the time that the reader has to catch up.
func (b *buffer) excuse(began, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.behind.IsZero() {
		return
	}
	if b.behind.After(began) {
		began = b.behind
	}
	b.behind = b.behind.Add(now.Sub(began))
}

// stop makes Next return an error, and drops the queue.
func (b *buffer) stop(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail(why)
}

// fail is stop for a caller that holds mu. If fail is called again, the first error stays.
func (b *buffer) fail(err error) {
	if b.failed == nil {
		b.failed = err
	}
	b.queue, b.queued = nil, 0
	b.notify()
}

func (b *buffer) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// notify tells the reader that queue, live or failed has changed. The caller holds mu.
func (b *buffer) notify() {
	if wake := b.parked; wake != nil {
		b.parked = nil
		wake()
		return
	}
	select {
	case b.ready <- struct{}{}:
	default: // Next has not read the last signal yet
	}
}
