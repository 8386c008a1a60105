package events

import (
	"maps"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/internal/limit"
	"mlsd/outbox"
)

const (
	maxOfDID   = 16       // subscriptions of one DID on this node
	maxOfNode  = 50_000   // subscriptions on this node
	largeEvent = 64 << 10 // bytes; subscriptions share larger events in memory
)

// registry knows the end of the stream and the subscriptions of this node. It puts each event into
// the buffers of the live subscriptions that the event concerns.
type registry struct {
	size     int              // bytes of a buffer
	now      func() time.Time // clock for how long a reader is behind; changed by tests
	large    *limit.Queue     // bytes of large log entries in use, by DID
	metrics  Metrics
	presence *Presence

	mu      sync.Mutex // guards the fields below
	tail               // changed only by the hub's Run
	all     map[*buffer]struct{}
	byDID   map[syntax.DID][]*buffer           // all subscriptions
	shares  map[syntax.DID]*share              // by the DIDs in byDID
	byConvo map[uuid.UUID]map[*buffer]struct{} // live subscriptions whose DID is a member
	shared  map[int64]weak.Pointer[Event]      // large events in use, by stream_seq
	closed  error                              // nil until the hub is closed
}

// add adds a subscription. Error: ErrTooMany. The caller holds the lock.
func (r *registry) add(b *buffer) error {
	if len(r.all) >= maxOfNode || len(r.byDID[b.did]) >= maxOfDID && !r.replace(b) {
		return ErrTooMany
	}
	if r.shares[b.did] == nil {
		r.shares[b.did] = &share{reading: make(chan struct{}, 1)}
	}
	b.share = r.shares[b.did]
	r.all[b] = struct{}{}
	r.byDID[b.did] = append(r.byDID[b.did], b)
	return nil
}

// replace ends another subscription of the same DID, so that b can begin. It ends the oldest
// subscription that the same device opened, or whose reader may be gone: a device that lost its
// network leaves connections that look open for half a minute. replace reports whether there was
// such a subscription. The caller holds the lock.
func (r *registry) replace(b *buffer) bool {
	for _, o := range r.byDID[b.did] {
		if o.doubted || b.named != "" && o.named == b.named {
			r.remove(o, ErrReplaced)
			return true
		}
	}
	return false
}

// remove ends a subscription. The caller holds the lock.
func (r *registry) remove(b *buffer, why error) {
	b.mu.Lock()
	r.detach(b)
	b.fail(why)
	b.mu.Unlock()
	r.holdLarge(b, 0)
	if _, there := r.all[b]; !there {
		return
	}
	delete(r.all, b)
	others := slices.DeleteFunc(r.byDID[b.did], func(o *buffer) bool { return o == b })
	if r.byDID[b.did] = others; len(others) == 0 {
		delete(r.byDID, b.did)
		delete(r.shares, b.did)
	}
}

// holdLarge gives a subscription n bytes that were taken from large, and gives back the bytes that it
// had. So it never has more than those of one event.
func (r *registry) holdLarge(b *buffer, n int64) {
	if before := b.large.Swap(n); before > 0 {
		r.large.Release(string(b.did), before)
	}
}

// publish hands out the next events of the stream.
func (r *registry) publish(batch []*Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range batch {
		r.share(e)
		switch {
		case e.Kind == outbox.Membership:
			r.publishMembership(e)
		case e.ofConvo():
			for b := range r.byConvo[e.ConvoID] {
				r.offer(b, e)
			}
		default:
			for _, b := range r.byDID[e.DID] {
				r.offer(b, e)
			}
		}
		r.head, r.day = e.StreamSeq, e.day
	}
	for _, e := range batch {
		if e.Kind.LogEntry() && len(r.byConvo[e.ConvoID]) > 0 {
			e = e.withoutEntry() // frees the log entry when its readers are done
		}
		r.memory.add(e)
	}
	r.memory.forget(r.indexed)
}

// publishMembership hands out a membership event. It adds a new member to the convo before it
// offers the event, and removes a former member after it has offered the event. So both get the
// event.
func (r *registry) publishMembership(e *Event) {
	joined := e.Detail.Change == outbox.Joined
	for _, b := range r.byDID[e.DID] {
		if joined && b.live && e.StreamSeq > b.from {
			r.addConvo(b, e.ConvoID)
		}
	}
	for b := range r.byConvo[e.ConvoID] { // offer can remove entries from the map
		r.offer(b, e)
	}
	if joined {
		return
	}
	for _, b := range r.byDID[e.DID] {
		if b.live && e.StreamSeq > b.from {
			r.removeConvo(b, e.ConvoID)
		}
	}
}

// share returns the event to use instead of e, so that memory holds a large event only once,
// however many subscriptions use it. The caller holds the lock.
func (r *registry) share(e *Event) *Event {
	if e.Size <= largeEvent {
		return e
	}
	if there := r.shared[e.StreamSeq].Value(); there != nil {
		return there
	}
	if len(r.shared) > 1000 {
		maps.DeleteFunc(r.shared, func(_ int64, p weak.Pointer[Event]) bool { return p.Value() == nil })
	}
	r.shared[e.StreamSeq] = weak.Make(e)
	return e
}

// attach makes a subscription live. The subscription has all events up to its place, and convos are
// the convos of its DID at that place. attach fails if the subscription has ended, or if the
// registry has forgotten some events after that place.
func (r *registry) attach(b *buffer, convos map[uuid.UUID]struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.remembers(b.place) {
		return false
	}
	b.mu.Lock()
	if b.failed != nil {
		b.mu.Unlock()
		return false
	}
	b.live, b.from, b.convos = true, b.place, map[uuid.UUID]struct{}{}
	b.mu.Unlock()
	if !b.doubted {
		r.connected(b)
	}
	for convo := range convos {
		r.addConvo(b, convo)
	}
	r.offerMissed(b, r.memory.after(b.place))
	return true
}

// remembers reports whether the registry remembers all events after a place. The caller holds the lock.
func (r *registry) remembers(place int64) bool { return r.head-place <= int64(len(r.memory.events)) }

// offerMissed offers a subscription the events between its place and the head.
func (r *registry) offerMissed(b *buffer, missed []*Event) {
	for _, e := range missed {
		mine := e.Kind == outbox.Membership && e.DID == b.did
		if mine && e.Detail.Change == outbox.Joined {
			r.addConvo(b, e.ConvoID)
		}
		_, member := b.convos[e.ConvoID]
		if e.ofConvo() && member || !e.ofConvo() && e.DID == b.did {
			r.offer(b, r.share(e.withoutEntry()))
		}
		if mine && e.Detail.Change != outbox.Joined {
			r.removeConvo(b, e.ConvoID)
		}
		if !b.live { // the buffer was full
			return
		}
	}
}

// offer puts an event into a live subscription's buffer. If the buffer is full, the subscription
// stops being live, and reads the table from that event on.
func (r *registry) offer(b *buffer, e *Event) {
	if !b.live || e.StreamSeq <= b.from || !b.wants(e.ConvoID) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 && b.queued+e.cost() > r.size {
		r.detach(b)
		b.place = e.StreamSeq - 1
		if b.behind.IsZero() {
			b.behind = r.now()
		}
		r.metrics.FellBehind()
	} else {
		b.queue = append(b.queue, e)
		b.queued += e.cost()
	}
	b.notify()
}

// detach undoes attach. It has no effect on a subscription that is not live. The caller holds the
// registry's lock and the buffer's lock.
func (r *registry) detach(b *buffer) {
	if !b.live {
		return
	}
	for convo := range b.convos {
		r.removeConvo(b, convo)
	}
	b.live = false
	if !b.doubted {
		r.disconnected(b)
	}
}

// addConvo adds a convo to a live subscription, if the subscription asked for the convo's events.
func (r *registry) addConvo(b *buffer, convo uuid.UUID) {
	if !b.wants(convo) {
		return
	}
	here := r.byConvo[convo]
	if here == nil {
		here = map[*buffer]struct{}{}
		r.byConvo[convo] = here
	}
	here[b] = struct{}{}
	b.convos[convo] = struct{}{}
}

// removeConvo undoes addConvo.
func (r *registry) removeConvo(b *buffer, convo uuid.UUID) {
	delete(b.convos, convo)
	delete(r.byConvo[convo], b)
	if len(r.byConvo[convo]) == 0 {
		delete(r.byConvo, convo)
	}
}

// connected tells the node's presence that the reader of a subscription is connected.
func (r *registry) connected(b *buffer) { r.presence.Connect(b.did, b.device, b.resumed) }

// disconnected undoes connected.
func (r *registry) disconnected(b *buffer) { r.presence.Disconnect(b.did, b.device, b.resumed) }
