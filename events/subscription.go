package events

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// Subscription gets the events of one person. Only one reader at a time may use Next, Ready, More
// and Park.
//
// A subscription that is not live reads the table events itself. A live subscription gets its
// events from the hub. It stops being live when its buffer is full.
type Subscription struct {
	// Outdated says that events after the cursor are no longer kept, or that the client has events
	// that the server has lost. The subscription begins with the oldest event that the client may
	// lack.
	Outdated bool

	hub    *Hub
	did    syntax.DID
	device string      // device that counts as connected while the subscription is live; "" means none
	named  string      // device that the client named, or ""
	only   []uuid.UUID // convos whose events it gets; nil means all
	of     generations // generations of the stream when it began
	// resumed says that the subscription began at a cursor. Without a cursor, it delivers no event
	// from before it began.
	resumed bool
	began   int64 // cursor of the last event before its beginning

	// Protected by the hub's lock.
	from    int64                  // the hub offers only events after this place
	convos  map[uuid.UUID]struct{} // if live, the convos at the hub's head
	doubted bool                   // the reader may no longer be connected

	mu       sync.Mutex // guards the fields below; locked after the hub's lock
	live     bool       // the hub puts events into queue; written under both locks
	queue    []*Event
	one      [1]*Event     // the memory of a short queue
	queued   int           // cost of the events in queue, in bytes
	position int64         // if not live, events up to this place have been read from the table
	behind   time.Time     // since when it catches up after its buffer was full; zero if it does not
	failed   error         // why it has ended; nil if it has not
	ready    chan struct{} // signalled when queue, live or failed has changed
	parked   func()        // called instead of a signal on ready; nil if the reader has not parked

	catch *catchUp // reads the table; owned by Ready
	taken *Event   // event that was taken from the queue and not returned yet, or nil; owned by Ready

	requests requests // owned by Ready, More and Request

	large atomic.Int64 // bytes of the hub's large events that this subscription uses
	share *share
}

// Subscribe begins a subscription. Errors: ErrFutureCursor, ErrTooMany, ErrClosing, errors of the
// database.
func (h *Hub) Subscribe(ctx context.Context, r Request) (*Subscription, error) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := &Subscription{hub: h, did: r.DID, device: r.DeviceID, named: r.DeviceID, only: r.Convos,
		ready: make(chan struct{}, 1)}
	s.queue = s.one[:0]
	if r.Convos != nil {
		s.device = "" // the device needs pushes for its other convos
	}
	if err := s.start(ctx, r.Cursor); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed != nil:
		return nil, h.closed
	case s.of.newest().id != h.of.newest().id: // the hub will read the new generation soon
		h.Wake()
		return nil, ErrClosing
	case len(h.all) >= maxOfNode, len(h.byDID[s.did]) >= maxOfDID && !h.replace(s):
		return nil, ErrTooMany
	}
	if h.shares[s.did] == nil {
		h.shares[s.did] = &share{large: semaphore.NewWeighted(h.ofDID), reading: make(chan struct{}, 1)}
	}
	s.share = h.shares[s.did]
	h.all[s] = struct{}{}
	h.byDID[s.did] = append(h.byDID[s.did], s)
	h.wake.Send() // without subscriptions, Run has read nothing since its last tick
	return s, nil
}

// replace ends another subscription of the same DID, so that s can begin. It ends the oldest
// subscription that the same device opened, or whose reader may be gone: a device that lost its
// network leaves connections that look open for half a minute. replace reports whether there was
// such a subscription. The caller holds the hub's lock.
func (h *Hub) replace(s *Subscription) bool {
	for _, o := range h.byDID[s.did] {
		if o.doubted || s.named != "" && o.named == s.named {
			o.endLocked(ErrReplaced)
			return true
		}
	}
	return false
}

// start finds the place of the stream at which a cursor begins.
func (s *Subscription) start(ctx context.Context, cursor *Cursor) error {
	s.resumed = cursor != nil
	s.hub.mu.Lock()
	s.position, s.of = s.hub.head, s.hub.of
	s.hub.mu.Unlock()
	before := s.position
	now, err := readStream(ctx, s.hub.cfg.DB)
	if err != nil {
		return err
	}
	s.of = now.of
	if cursor == nil { // a hub without subscriptions has not read the newest events
		s.position = max(before, now.head)
		s.began = s.of.newest().number(s.position)
		return nil
	}
	s.position, s.Outdated, err = now.of.resolve(*cursor, now.first, now.head)
	if err != nil && now.head < before { // the cursor is not ahead, but the stream has gone back
		s.hub.Wake()
		return ErrClosing
	}
	return err
}

// Began returns the cursor of the place at which a subscription without a cursor began.
func (s *Subscription) Began() int64 { return s.began }

// wants reports whether the request asks for events of a convo. The zero id means events that
// concern no convo.
func (s *Subscription) wants(convo uuid.UUID) bool {
	return s.only == nil || slices.Contains(s.only, convo)
}

// Next waits for the next event. It returns the errors of Ready.
func (s *Subscription) Next(ctx context.Context) (*Event, error) {
	for {
		if e, err := s.Ready(ctx); e != nil || err != nil {
			return e, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ready returns the next event, or nil if the subscription is live and has no event. Until it has
// an event or is live, Ready reads the table. If the database is unavailable, Ready tries again for
// the hub's Patience.
//
// Errors: ErrConsumerTooSlow, ErrReplaced, ErrClosing, the error of ctx, errors of the database.
// After one of the last two, the next call returns the event that this call would have returned.
func (s *Subscription) Ready(ctx context.Context) (*Event, error) {
	s.releaseLarge()
	for {
		e, live, err := s.take()
		switch {
		case err != nil:
			return nil, err
		case e == nil && live:
			return nil, nil
		case e == nil:
			if err := s.retry(ctx, func() error { return s.advance(ctx) }); err != nil {
				return nil, err
			}
			continue
		}
		if err := s.acquireLarge(ctx, e); err != nil {
			return nil, err
		}
		if err := s.retry(ctx, func() error { return s.loadEntry(ctx, e) }); err != nil {
			return nil, err
		}
		s.taken = nil
		if e.Kind.LogEntry() && e.Message() == nil {
			// A large log entry has expired, or its convo was deleted. catchUp.page leaves out
			// small entries that are missing.
			s.hub.cfg.Log.InfoContext(ctx, "an event's log entry has expired", "stream_seq", e.StreamSeq)
			continue
		}
		s.requests.last = e
		return e, nil
	}
}

// More returns the event after the event that Next, Ready or More returned last. It returns nil if
// there is no such event yet, if the event is large, or if the event needs the database.
func (s *Subscription) More() *Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || s.taken != nil || len(s.queue) == 0 {
		return nil
	}
	e := s.queue[0]
	if e.Size > largeEvent || e.Kind.LogEntry() && e.Message() == nil || s.requests.stale(s.did, e) {
		return nil
	}
	s.pop()
	s.requests.last = e
	return e
}

// Park leaves a live subscription that has no event without a reader, and reports whether it did
// so. It does not if ctx has ended. wake is called once: when there is an event, when the
// subscription ends, or when Wake is called. wake must not block, because its caller holds locks of
// the subscription.
func (s *Subscription) Park(ctx context.Context, wake func()) bool {
	s.releaseLarge()
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || s.failed != nil || !s.live || s.taken != nil || len(s.queue) > 0 {
		return false
	}
	s.behind, s.parked, s.requests.last = time.Time{}, wake, nil
	return true
}

// Wake calls the wake function of Park if the reader has parked. Any goroutine can call Wake.
func (s *Subscription) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify()
}

// take returns the event that was taken and not returned yet. If there is none, it returns the next
// event of the queue, or nil.
func (s *Subscription) take() (e *Event, live bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, false, s.failed
	case s.taken != nil:
		return s.taken, s.live, nil
	case len(s.queue) == 0:
		if s.live {
			s.behind = time.Time{}
		}
		return nil, s.live, nil
	}
	s.taken = s.pop()
	return s.taken, s.live, nil
}

// pop takes the first event out of the queue. The caller holds mu.
func (s *Subscription) pop() *Event {
	e := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	s.queued -= e.cost()
	if len(s.queue) == 0 {
		s.queue = s.one[:0] // an idle subscription keeps no more memory
	}
	return e
}

// acquireLarge waits for space for a large event, within the limits of the DID and of the hub. The
// event keeps the space until the next call of Next. Other subscriptions cause the wait, so the
// reader does not count as slow.
func (s *Subscription) acquireLarge(ctx context.Context, e *Event) error {
	if e.Size <= largeEvent {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.hub.closing, cancel)()
	defer s.excuse(s.hub.now())
	n := int64(e.Size)
	if err := s.share.large.Acquire(ctx, n); err != nil {
		return cmp.Or(s.failure(), err)
	}
	if err := s.hub.large.Acquire(ctx, n); err != nil {
		s.share.large.Release(n)
		return cmp.Or(s.failure(), err)
	}
	s.large.Store(n)
	if err := s.failure(); err != nil { // end may have run before the Store
		s.releaseLarge()
		return err
	}
	return nil
}

// excuse adds the time since began to the time that the reader has to catch up.
func (s *Subscription) excuse(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind.IsZero() {
		return
	}
	if s.behind.After(began) {
		began = s.behind
	}
	s.behind = s.behind.Add(s.hub.now().Sub(began))
}

func (s *Subscription) releaseLarge() {
	n := s.large.Swap(0)
	s.hub.large.Release(n)
	s.share.large.Release(n)
}

// loadEntry loads the log entry of an event whose kind has one.
func (s *Subscription) loadEntry(ctx context.Context, e *Event) error {
	if !e.Kind.LogEntry() || e.Message() != nil {
		return nil
	}
	e.loading.Lock()
	defer e.loading.Unlock()
	return loadEntries(ctx, s.hub.cfg.DB, []*Event{e})
}

// advance reads the next page of the table into the queue. When nothing is left to read it makes
// the subscription live.
func (s *Subscription) advance(ctx context.Context) error {
	s.mu.Lock()
	behind, position := s.behind, s.position
	s.mu.Unlock()
	if !behind.IsZero() && s.hub.now().Sub(behind) > s.hub.cfg.Patience {
		s.Slow()
		return ErrConsumerTooSlow
	}
	page, done, err := s.read(ctx, position)
	if errors.Is(err, errNotThere) { // the client connects again, and gets OutdatedCursor
		s.end(ErrClosing)
		return ErrClosing
	}
	if err != nil {
		return err
	}
	if s.catch.waits {
		worker.Pause(ctx, indexPause) // meanwhile others can read the table
		return nil
	}
	s.mu.Lock()
	s.queue, s.position = append(s.queue, page...), s.catch.position
	for _, e := range page {
		s.queued += e.cost()
	}
	s.mu.Unlock()
	if len(page) > 0 {
		s.hub.cfg.Metrics.CatchUp(len(page))
	}
	if done {
		s.hub.attach(s, s.catch.convos) // if attach fails, it reads on
		s.catch = nil
	}
	return nil
}

// read reads the next page of the table. Few subscriptions read at the same time (catchUpShare),
// and only one of each DID, because a page costs a look-up for each convo.
func (s *Subscription) read(ctx context.Context, position int64) (page []*Event, done bool, err error) {
	for _, places := range []chan struct{}{s.share.reading, s.hub.reading} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-s.hub.closing.Done():
			return nil, false, ErrClosing
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	if s.catch == nil {
		if s.catch, err = s.begin(ctx, position, max(s.hub.Head(), position)); err != nil {
			return nil, false, err
		}
	}
	return s.catch.page(ctx)
}

// retry calls do again while the database is unavailable, but no longer than the hub's Patience.
func (s *Subscription) retry(ctx context.Context, do func() error) error {
	began := time.Now()
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := do()
		if err == nil || ctx.Err() != nil || !pgpool.Unavailable(err) || time.Since(began) > s.hub.cfg.Patience {
			return err
		}
		s.catch = nil
		worker.Pause(ctx, delay)
		if err := s.failure(); err != nil {
			return err
		}
	}
}

// Doubt says that the reader may be gone. Its device gets pushes until Trust is called.
func (s *Subscription) Doubt() { s.setDoubted(true) }

// Trust says that the reader has shown that it is connected.
func (s *Subscription) Trust() { s.setDoubted(false) }

func (s *Subscription) setDoubted(doubted bool) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.doubted == doubted {
		return
	}
	s.doubted = doubted
	switch {
	case !s.live:
	case doubted:
		s.disconnected()
	default:
		s.connected()
	}
}

// connected tells the node's presence that the reader is connected.
func (s *Subscription) connected() { s.hub.cfg.Presence.Connect(s.did, s.device, s.resumed) }

// disconnected undoes connected.
func (s *Subscription) disconnected() { s.hub.cfg.Presence.Disconnect(s.did, s.device, s.resumed) }

// Slow ends the subscription with ErrConsumerTooSlow, because its reader does not read fast enough.
func (s *Subscription) Slow() { s.end(ErrConsumerTooSlow) }

// Close ends the subscription. Any goroutine can call it, more than once.
func (s *Subscription) Close() { s.end(ErrClosing) }

// end removes the subscription from the hub.
func (s *Subscription) end(why error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.endLocked(why)
}

// endLocked is end for a caller that holds the hub's lock.
func (s *Subscription) endLocked(why error) {
	h := s.hub
	s.mu.Lock()
	h.detach(s)
	s.fail(why)
	s.mu.Unlock()
	s.releaseLarge()
	if _, there := h.all[s]; !there {
		return
	}
	delete(h.all, s)
	others := slices.DeleteFunc(h.byDID[s.did], func(o *Subscription) bool { return o == s })
	if h.byDID[s.did] = others; len(others) == 0 {
		delete(h.byDID, s.did)
		delete(h.shares, s.did)
	}
}

// fail makes Next return an error, and drops the buffer. If fail is called again, the first error
// stays. The caller holds mu.
func (s *Subscription) fail(err error) {
	if s.failed == nil {
		s.failed = err
	}
	s.queue, s.queued = nil, 0
	s.notify()
}

func (s *Subscription) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// notify tells the reader that queue, live or failed has changed. The caller holds mu.
func (s *Subscription) notify() {
	if wake := s.parked; wake != nil {
		s.parked = nil
		wake()
		return
	}
	select {
	case s.ready <- struct{}{}:
	default: // Next has not read the last signal yet
	}
}
