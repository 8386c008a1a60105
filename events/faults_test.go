package events_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
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
	w := newWorld(t)
	n := w.node(t)
	n.publish(t)
	convo := w.convo(t, alice)
	n.publish(t)
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
	w := newWorld(t)
	n := w.node(t)
	n.publish(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 300)
	n.publish(t)
	for day := 1; day <= 3; day++ {
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 100)
		n.publish(t)
	}
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
	w := newWorld(t)
	n := w.node(t)
	n.publish(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 3)
	n.publish(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	if _, err := w.db.Exec(t.Context(), `
		WITH back AS (DELETE FROM events WHERE stream_seq > 2 RETURNING *), head AS (UPDATE stream SET head = 2)
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT kind, convo_id, seq, size, created_at FROM back ORDER BY stream_seq`); err != nil {
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
	results, err := w.log.Append(t.Context(), []messages.Draft{{
		ConvoID: convo, GroupID: convo[:], Sender: alice, Key: "large", Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, strings.Repeat("x", 10<<20-1000)),
		Hash: idem.Content{{Name: "ciphertext", JSON: []byte(`"x"`)}}.Hash(),
	}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	n.publish(t)
	large := func(s *events.Subscription) (*events.Event, error) {
		for {
			e, err := s.Next(t.Context())
			if err != nil || e.Kind == outbox.Application {
				return e, err
			}
		}
	}
	one, two, three := n.subscribe(t, alice, 0), n.subscribe(t, alice, 0), n.subscribe(t, bob, 0)
	first, err := large(one)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := large(two); err != nil || second != first {
		t.Errorf("another copy, %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := large(three)
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
		_, err := large(last)
		waiting <- err
	}()
	n.hub.Close()
	if err := <-waiting; !errors.Is(err, events.ErrClosing) {
		t.Errorf("waiting when the hub closes: %v", err)
	}
}
