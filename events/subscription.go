package events

import (
	"cmp"
	"context"
	"errors"
	"time"

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

	buffer
	hub *Hub
	of  generations // generations of the stream when it began

	began    int64    // cursor of the last event before its beginning
	catch    *catchUp // reads the table; owned by Ready
	taken    *Event   // event that was taken from the queue and not returned yet, or nil; owned by Ready
	requests requests // owned by Ready, More and Request
}

// Subscribe begins a subscription. Errors: ErrFutureCursor, ErrTooMany, ErrClosing, errors of the
// database.
func (h *Hub) Subscribe(ctx context.Context, r Request) (*Subscription, error) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := &Subscription{hub: h, buffer: buffer{did: r.DID, device: r.DeviceID, named: r.DeviceID, only: r.Convos,
		ready: make(chan struct{}, 1)}}
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
	}
	if err := h.add(&s.buffer); err != nil {
		return nil, err
	}
	h.wake.Send() // without subscriptions, Run has read nothing since its last tick
	return s, nil
}

// start finds the place of the stream at which a cursor begins.
func (s *Subscription) start(ctx context.Context, cursor *Cursor) error {
	s.resumed = cursor != nil
	s.hub.mu.Lock()
	s.place, s.of = s.hub.head, s.hub.of
	s.hub.mu.Unlock()
	before := s.place
	now, err := readStream(ctx, s.hub.cfg.DB)
	if err != nil {
		return err
	}
	s.of = now.of
	if cursor == nil { // a hub without subscriptions has not read the newest events
		s.place = max(before, now.head)
		s.began = s.of.newest().number(s.place)
		return nil
	}
	s.place, s.Outdated, err = now.of.resolve(*cursor, now.first, now.head)
	if err != nil && now.head < before { // the cursor is not ahead, but the stream has gone back
		s.hub.Wake()
		return ErrClosing
	}
	newest := now.of.newest()
	switch {
	case err != nil:
		s.hub.ahead.add(ctx, newest.position(s.place), newest.position(now.head))
	case cursor.Generation > newest.id:
		s.hub.ahead.add(ctx, generation{id: cursor.Generation}.position(cursor.Seq), newest.position(now.head))
	}
	return err
}

// Began returns the cursor of the place at which a subscription without a cursor began.
func (s *Subscription) Began() int64 { return s.began }

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
	s.hub.holdLarge(&s.buffer, 0)
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
	s.hub.holdLarge(&s.buffer, 0)
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

// Request reports whether the last event of Next is of a convo that the person has not accepted. If
// it cannot read the roster again, the mark stays as it was.
func (s *Subscription) Request(ctx context.Context) bool { return s.requests.marks(ctx, s.hub, s.did) }

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
	began := s.hub.now()
	defer func() { s.excuse(began, s.hub.now()) }()
	s.hub.holdLarge(&s.buffer, 0)
	n := int64(e.Size)
	if err := s.hub.large.Acquire(ctx, string(s.did), n); err != nil {
		return cmp.Or(s.failure(), ctx.Err())
	}
	s.hub.holdLarge(&s.buffer, n)
	if err := s.failure(); err != nil { // end may have run before
		s.hub.holdLarge(&s.buffer, 0)
		return err
	}
	return nil
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
	behind, place := s.behind, s.place
	s.mu.Unlock()
	if !behind.IsZero() && s.hub.now().Sub(behind) > s.hub.cfg.Patience {
		s.Slow()
		return ErrConsumerTooSlow
	}
	page, done, err := s.read(ctx, place)
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
	s.queue, s.place = append(s.queue, page...), s.catch.place
	for _, e := range page {
		s.queued += e.cost()
	}
	s.mu.Unlock()
	if len(page) > 0 {
		s.hub.cfg.Metrics.CatchUp(len(page))
	}
	if done {
		s.hub.attach(&s.buffer, s.catch.convos) // if attach fails, it reads on
		s.catch = nil
	}
	return nil
}

// read reads the next page of the table. Few subscriptions read at the same time (catchUpShare),
// and only one of each DID, because a page costs a look-up for each convo.
func (s *Subscription) read(ctx context.Context, place int64) (page []*Event, done bool, err error) {
	for _, slots := range []chan struct{}{s.share.reading, s.hub.reading} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-s.hub.closing.Done():
			return nil, false, ErrClosing
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	if s.catch == nil {
		c := &catchUp{hub: s.hub, buffer: &s.buffer, of: s.of, place: place, upto: max(s.hub.Head(), place)}
		pending, err := c.begin(ctx)
		if err != nil {
			return nil, false, err
		}
		s.requests.set(pending, c.upto)
		s.catch = c
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
		h.disconnected(&s.buffer)
	default:
		h.connected(&s.buffer)
	}
}

// Slow ends the subscription with ErrConsumerTooSlow, because its reader does not read fast enough.
func (s *Subscription) Slow() { s.end(ErrConsumerTooSlow) }

// Close ends the subscription. Any goroutine can call it, more than once.
func (s *Subscription) Close() { s.end(ErrClosing) }

// end removes the subscription from the hub.
func (s *Subscription) end(why error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.remove(&s.buffer, why)
}
