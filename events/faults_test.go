package events_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/outbox"
)

// TestReaderOfTheTable: a transaction that keeps the table open for long, as a backup does, delays
// no event, even when partitions are due to be created and dropped.
func TestReaderOfTheTable(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice)
	s := n.subscribe(t, alice)
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE events IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	for day := 1; day <= 12; day++ { // the first day is due to be dropped, and others to be created
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 1)
		n.publish(t)
	}
	want(t, next(t, s, 12), "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12")
}

// TestDroppedWhileCatchingUp: if the next events of a reader are dropped while it reads, it does
// not get the events behind them as if they were the next ones.
func TestDroppedWhileCatchingUp(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 300, alice)
	for day := 1; day <= 3; day++ {
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 100)
		n.publish(t)
	}
	n.hub.Forget(t, 1)
	s := n.subscribe(t, alice, 0)
	next(t, s, 100)
	n.seq.Ahead(9 * 24 * time.Hour)
	n.publish(t)
	last := int64(100)
	for {
		e, err := s.Next(t.Context())
		if errors.Is(err, events.ErrClosing) {
			break
		}
		if err != nil || e.StreamSeq != last+1 {
			t.Fatalf("after event %d: %+v, %v", last, e, err)
		}
		last++
	}
	again := n.subscribe(t, alice, last+1)
	if !again.Outdated {
		t.Error("the new subscription is not outdated")
	}
	next(t, again, 100)
}

// TestStreamGoesBack: if another database replaces this one and lacks its newest events, the
// subscriptions end.
func TestStreamGoesBack(t *testing.T) {
	t.Parallel()
	w, n, _ := newConvo(t, 3, alice)
	s := n.subscribe(t, alice)
	nothing(t, s)
	if _, err := w.db.Exec(t.Context(), `
		WITH back AS (DELETE FROM events WHERE stream_seq > 2 RETURNING *), head AS (UPDATE stream SET head = 2)
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT kind, convo_id, seq, size, created_at FROM back
			ORDER BY stream_seq`); err != nil {
		t.Fatal(err)
	}
	n.hub.CheckNow()
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
		t.Errorf("got %v", err)
	}
	n.publish(t)
	want(t, next(t, n.subscribe(t, alice, 3), 2), "2", "3")
}

// TestCloseWhileItGoesLive: a subscription can be closed at any time, and leaves no presence
// behind.
func TestCloseWhileItGoesLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := events.NewPresence(w.db, slog.New(slog.DiscardHandler))
	n := w.node(t, func(c *events.HubConfig) { c.Presence = p })
	n.publish(t)
	w.convo(t, alice)
	n.publish(t)
	for range 200 {
		s := n.subscribeTo(t, events.Request{DID: alice, DeviceID: "phone"})
		var both sync.WaitGroup
		both.Go(func() {
			for err := error(nil); err == nil; {
				_, err = s.Next(t.Context())
			}
		})
		both.Go(s.Close)
		both.Wait()
	}
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if who := present(t, w.db); len(who) > 0 {
		t.Errorf("connected for ever: %v", who)
	}
}

// TestWhoCountsAsConnected: a connection to some convos does not count as presence, and neither
// does a doubted connection.
func TestWhoCountsAsConnected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := events.NewPresence(w.db, slog.New(slog.DiscardHandler))
	n := w.node(t, func(c *events.HubConfig) { c.Presence = p })
	n.publish(t)
	check := func(when string, want int) {
		t.Helper()
		if err := p.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if who := present(t, w.db); len(who) != want {
			t.Errorf("%s: %v", when, who)
		}
	}
	some := n.subscribeTo(t, events.Request{DID: bob, DeviceID: "phone", Convos: []uuid.UUID{uuid.New()}})
	nothing(t, some)
	check("connected to some convos", 0)
	s := n.subscribeTo(t, events.Request{DID: bob, DeviceID: "phone"})
	check("not live yet", 0)
	nothing(t, s)
	check("live", 1)
	s.Doubt()
	s.Doubt()
	check("doubted", 0)
	s.Trust()
	s.Trust()
	check("trusted again", 1)
	s.Doubt()
	s.Close()
	s.Trust()
	check("closed", 0)
}

// TestLargeEvents: a large message is in memory once, however many subscriptions use it, and only
// as many use it at once as the limit allows.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Large = 25 << 20 })
	n.publish(t)
	convo := w.convo(t, alice, bob)
	w.sayLarge(t, convo)
	n.publish(t)
	one, two, three := n.subscribe(t, alice, 0), n.subscribe(t, alice, 0), n.subscribe(t, bob, 0)
	first, err := application(t, one)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := application(t, two); err != nil || second != first {
		t.Errorf("another copy, %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := application(t, three)
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Fatalf("thirty fit into twenty-five: %v", err)
	case <-time.After(50 * time.Millisecond): // if the goroutine is slower, the test shows nothing
	}
	one.Close()
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	last := n.subscribe(t, bob, 0)
	go func() {
		_, err := application(t, last)
		waiting <- err
	}()
	n.hub.Close()
	if err := <-waiting; !errors.Is(err, events.ErrClosing) {
		t.Errorf("waiting when the hub closes: %v", err)
	}
}

// sayLarge appends a message of alice's of nearly 10 MiB.
func (w *world) sayLarge(t *testing.T, convo uuid.UUID) {
	t.Helper()
	results, err := w.log.Append(t.Context(), []messages.Draft{{
		ConvoID: convo, GroupID: convo[:], Sender: alice, Key: uuid.NewString(), Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, strings.Repeat("x", 10<<20-1000)),
		Hash: idem.Content{{Name: "ciphertext", JSON: []byte(`"x"`)}}.Hash(),
	}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
}

// application returns the next event of an application message.
func application(t *testing.T, s *events.Subscription) (*events.Event, error) {
	for {
		e, err := s.Next(t.Context())
		if err != nil || e.Kind == outbox.Application {
			return e, err
		}
	}
}

// E8: a reader that waits for the memory of a large event, because others hold it, is not ended as
// too slow. Its own events fill its buffer meanwhile, for longer than a reader may be behind.
func TestWaitForLargeEventsIsExcused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Large, c.Buffer, c.Patience = 15<<20, 4000, time.Hour })
	var later atomic.Int64 // than when the test began
	waiting, began := make(chan struct{}, 100), time.Now()
	n.hub.SetClock(func() time.Time {
		select {
		case waiting <- struct{}{}:
		default:
		}
		return began.Add(time.Duration(later.Load()))
	})
	n.publish(t)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	slow, waits := n.subscribe(t, alice), n.subscribe(t, bob)
	nothing(t, slow)
	nothing(t, waits)
	w.sayLarge(t, convo)
	n.publish(t)
	if _, err := application(t, slow); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		for range 51 {
			if _, err := application(t, waits); err != nil {
				read <- err
				return
			}
		}
		read <- nil
	}()
	select {
	case <-waiting: // the reader of the large event
	case err := <-read:
		t.Fatalf("the reader did not wait: %v", err)
	case <-time.After(patience):
		t.Fatal("nobody measures how long the reader waits")
	}
	w.say(t, convo, alice, 50)
	n.publish(t)
	later.Store(int64(2 * time.Hour))
	slow.Close()
	if err := <-read; err != nil {
		t.Fatalf("the reader that waited: %v", err)
	}
}

// E8: the subscriptions of one DID cannot use all memory for large events.
func TestLargeEventsOfOneDID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Large = 35 << 20 }) // three
	n.publish(t)
	convo := w.convo(t, alice, bob)
	w.sayLarge(t, convo)
	n.publish(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holds := make(chan struct{}, 3)
	var all sync.WaitGroup
	for range 3 {
		s := n.subscribe(t, alice, 0)
		all.Go(func() {
			for {
				e, err := s.Next(ctx)
				if err != nil {
					return
				}
				if e.Kind == outbox.Application {
					holds <- struct{}{}
					<-ctx.Done() // reads no further
				}
			}
		})
	}
	<-holds
	<-holds
	other, read := n.subscribe(t, bob, 0), make(chan error, 1)
	select {
	case <-holds:
		t.Error("one DID holds all")
	case <-time.After(100 * time.Millisecond): // if the goroutine is slower, the next check shows it
	}
	go func() {
		_, err := application(t, other)
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("another reader waits while one DID holds all")
	}
	cancel()
	all.Wait()
}

// E12: of the subscriptions of one device the oldest gives way to a new one, so that a phone that
// has left half-open connections behind is not refused. Those of other devices stay.
func TestOldestGivesWay(t *testing.T) {
	t.Parallel()
	_, n := newNode(t)
	var all []*events.Subscription
	for i := range 16 {
		device := "phone"
		if i == 0 {
			device = "laptop"
		}
		all = append(all, n.subscribeTo(t, events.Request{DID: alice, DeviceID: device}))
	}
	n.subscribeTo(t, events.Request{DID: alice, DeviceID: "phone"})
	if _, err := all[1].Next(t.Context()); !errors.Is(err, events.ErrReplaced) {
		t.Errorf("the phone's oldest: %v", err)
	}
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: alice, DeviceID: "tablet"}); !errors.Is(err,
		events.ErrTooMany) {
		t.Fatalf("a seventeenth of another device: %v", err)
	}
	all[5].Doubt()
	n.subscribeTo(t, events.Request{DID: alice, DeviceID: "tablet"})
	if _, err := all[5].Next(t.Context()); !errors.Is(err, events.ErrReplaced) {
		t.Errorf("one that is probably gone: %v", err)
	}
}

// G1: large events whose log entries are gone do not keep the memory that their reader took for them,
// so the reader goes on, and others get their large events.
func TestLargeEventsWithoutEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Large = 25 << 20 }) // two
	n.publish(t)
	convo, other := w.convo(t, alice), w.convo(t, alice, bob)
	for range 4 {
		w.sayLarge(t, convo)
	}
	w.say(t, convo, alice, 1)
	w.sayLarge(t, other)
	n.publish(t)
	reader := n.subscribe(t, alice, 0)
	for {
		e, err := reader.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == outbox.Application && e.Seq == 1 {
			break
		}
	}
	// The large entries of the page that it has read expire.
	exec(t, w.db, `DELETE FROM messages WHERE convo_id = $1 AND seq <= 4`, convo)
	exec(t, w.db, `INSERT INTO log_floors (convo_id, seq) VALUES ($1, 4)`, convo)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if e, err := reader.Next(ctx); err != nil || e.Seq != 5 {
		t.Fatalf("after the entries that are gone: %+v, %v", e, err)
	}
	if _, err := application(t, n.subscribe(t, bob, 0)); err != nil {
		t.Fatal(err)
	}
}
