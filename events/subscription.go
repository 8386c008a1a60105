package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/internal/pgpool"
)

// Subscription is somebody who listens. Next is for one goroutine.
type Subscription struct {
	// Outdated says that the cursor was older than what is kept: the stream begins with the oldest event there is.
	Outdated bool

	hub    *Hub
	did    syntax.DID
	device string
	only   []uuid.UUID // convos; nil: all

	// Guarded by the hub's lock.
	from    int64                  // nothing up to here is wanted any more
	convos  map[uuid.UUID]struct{} // at the hub's head; of a live one
	doubted bool                   // whether its reader is there

	mu       sync.Mutex // after the hub's lock; guards what follows
	live     bool       // the hub puts events into queue; to change it takes the hub's lock too
	queue    []*Event
	queued   int           // bytes in queue, at most
	position int64         // everything up to here has been put into queue, or is not wanted; of one that is not live
	behind   time.Time     // since when it has to catch up because its buffer was full; zero: it has not
	failed   error         // why it has ended
	ready    chan struct{} // something has changed

	catch *catchUp // Next's own: what it reads the table with

	inHand atomic.Int64 // bytes of the hub's large ones
}

// Subscribe begins a subscription. Errors besides the database's: ErrFutureCursor, ErrTooMany, ErrClosing.
func (h *Hub) Subscribe(ctx context.Context, r Request) (*Subscription, error) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := &Subscription{hub: h, did: r.DID, device: r.DeviceID, only: r.Convos, ready: make(chan struct{}, 1)}
	if r.Convos != nil {
		s.device = "" // it is to be called for the others
	}
	if err := s.place(ctx, r.Cursor); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed != nil:
		return nil, h.closed
	case len(h.byDID[s.did]) >= maxOfDID, len(h.all) >= maxOfNode:
		return nil, ErrTooMany
	}
	h.all[s] = struct{}{}
	h.byDID[s.did] = append(h.byDID[s.did], s)
	return s, nil
}

// place finds where the stream begins for a cursor.
func (s *Subscription) place(ctx context.Context, cursor *int64) error {
	if cursor == nil {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		s.position = s.hub.head
		return nil
	}
	var head, first int64
	err := s.hub.db.QueryRow(ctx, `
		SELECT head, coalesce((SELECT min(first_seq) FROM event_days), head + 1) FROM stream`).Scan(&head, &first)
	switch {
	case err != nil:
		return fmt.Errorf("ask where the stream begins: %w", err)
	case *cursor > head+1:
		return ErrFutureCursor
	}
	s.Outdated = *cursor > 0 && *cursor < first
	s.position = max(*cursor, first) - 1
	return nil
}

// wants reports whether what concerns a convo is wanted. The zero id is for what concerns none.
func (s *Subscription) wants(convo uuid.UUID) bool {
	return s.only == nil || slices.Contains(s.only, convo)
}

// Next waits for the next event and returns it. While the database cannot be reached it waits for that, too, as long as a reader may
// be behind. Errors: ErrConsumerTooSlow, ErrClosing, ctx's, the database's.
func (s *Subscription) Next(ctx context.Context) (*Event, error) {
	s.putDown()
	for {
		e, live, err := s.take()
		if err != nil {
			return nil, err
		}
		switch {
		case e != nil:
			if err := s.pickUp(ctx, e); err != nil {
				return nil, err
			}
			if err := s.retry(ctx, func() error { return s.complete(ctx, e) }); err != nil {
				return nil, err
			}
			if e.Kind.LogEntry() && e.Message() == nil {
				// It has expired: messages are kept for longer than their events, but the events of the newest day stay.
				s.hub.log.InfoContext(ctx, "an event's log entry is gone", "stream_seq", e.StreamSeq)
				continue
			}
			return e, nil
		case live:
			select {
			case <-s.ready:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		default:
			if err := s.retry(ctx, func() error { return s.advance(ctx) }); err != nil {
				return nil, err
			}
		}
	}
}

// take returns the next event that waits, if one does.
func (s *Subscription) take() (e *Event, live bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, false, s.failed
	case len(s.queue) == 0:
		if s.live {
			s.behind = time.Time{}
		}
		return nil, s.live, nil
	}
	e = s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	s.queued -= e.cost()
	if len(s.queue) == 0 {
		s.queue = nil // an idle reader holds nothing
	}
	return e, s.live, nil
}

// pickUp waits until a large event may be in memory for this reader too. It is put down with the next one.
func (s *Subscription) pickUp(ctx context.Context, e *Event) error {
	if e.Size <= largeEvent {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.hub.closing, cancel)()
	if err := s.hub.large.Acquire(ctx, int64(e.Size)); err != nil {
		return cmp.Or(s.failure(), err)
	}
	s.inHand.Store(int64(e.Size))
	if err := s.failure(); err != nil { // it was put down already
		s.putDown()
		return err
	}
	return nil
}

func (s *Subscription) putDown() { s.hub.large.Release(s.inHand.Swap(0)) }

// complete sees to it that an event has its log entry, if there is one.
func (s *Subscription) complete(ctx context.Context, e *Event) error {
	if !e.Kind.LogEntry() || e.Message() != nil {
		return nil
	}
	e.loading.Lock()
	defer e.loading.Unlock()
	return fetch(ctx, s.hub.db, []*Event{e})
}

// advance reads what the subscription is behind with, and has it go live when that is nothing any more.
func (s *Subscription) advance(ctx context.Context) error {
	s.mu.Lock()
	behind, position := s.behind, s.position
	s.mu.Unlock()
	if !behind.IsZero() && time.Since(behind) > s.hub.patience {
		s.Slow()
		return ErrConsumerTooSlow
	}
	page, done, err := s.read(ctx, position)
	if errors.Is(err, errDropped) { // connecting again it learns what it has missed
		s.end(ErrClosing)
		return ErrClosing
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.queue, s.position = append(s.queue, page...), s.catch.position
	for _, e := range page {
		s.queued += e.cost()
	}
	s.mu.Unlock()
	if len(page) > 0 {
		s.hub.metrics.CatchUp(len(page))
	}
	if done {
		s.hub.attach(s, s.catch.convos) // else it reads on from there
		s.catch = nil
	}
	return nil
}

// read reads the next page of the table, when it is this reader's turn.
func (s *Subscription) read(ctx context.Context, position int64) (page []*Event, done bool, err error) {
	select {
	case s.hub.reading <- struct{}{}:
		defer func() { <-s.hub.reading }()
	case <-s.hub.closing.Done():
		return nil, false, ErrClosing
	case <-ctx.Done():
		return nil, false, ctx.Err()
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

// retry does something again while the database cannot be reached, as long as a reader may be behind.
func (s *Subscription) retry(ctx context.Context, do func() error) error {
	began := time.Now()
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := do()
		if err == nil || ctx.Err() != nil || !pgpool.Unavailable(err) || time.Since(began) > s.hub.patience {
			return err
		}
		s.catch = nil
		pause(ctx, delay)
		if err := s.failure(); err != nil {
			return err
		}
	}
}

// Doubt says that the reader may not be there: its device is to be called like one that is not connected.
func (s *Subscription) Doubt() { s.believe(false) }

// Trust says that the reader has given a sign of life.
func (s *Subscription) Trust() { s.believe(true) }

func (s *Subscription) believe(there bool) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.doubted != there {
		return
	}
	s.doubted = !there
	switch {
	case !s.live:
	case there:
		h.presence.Connected(s.did, s.device)
	default:
		h.presence.Gone(s.did, s.device)
	}
}

// Slow ends the subscription with ErrConsumerTooSlow: its reader does not take what it is sent.
func (s *Subscription) Slow() { s.end(ErrConsumerTooSlow) }

// Close ends the subscription. It may be called more than once, from any goroutine.
func (s *Subscription) Close() { s.end(ErrClosing) }

// end takes the subscription out of the hub.
func (s *Subscription) end(why error) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	h.detach(s)
	s.fail(why)
	s.mu.Unlock()
	s.putDown()
	if _, there := h.all[s]; !there {
		return
	}
	delete(h.all, s)
	others := slices.DeleteFunc(h.byDID[s.did], func(o *Subscription) bool { return o == s })
	if h.byDID[s.did] = others; len(others) == 0 {
		delete(h.byDID, s.did)
	}
}

// fail has Next return an error, the first that there was. What waits in the buffer is given up. The caller holds mu.
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

func (s *Subscription) notify() {
	select {
	case s.ready <- struct{}{}:
	default: // it knows already
	}
}
