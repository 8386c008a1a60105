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

// TestReaderOfTheTable: whoever holds the table open for long, as a backup does, holds up no event: not even when the partitions are to
// be looked after.
func TestReaderOfTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	n.settle(t)
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
	for day := 1; day <= 12; day++ { // the first day is to be dropped, and others are to be made
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 1)
		n.settle(t)
	}
	want(t, next(t, s, 12), "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12")
}

// TestDroppedWhileCatchingUp: a reader whose next events are dropped while it reads is not told the ones behind them as if nothing had
// been between.
func TestDroppedWhileCatchingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 300)
	n.settle(t)
	for day := 1; day <= 3; day++ {
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 100)
		n.settle(t)
	}
	s := n.subscribe(t, alice, 0)
	next(t, s, 100)
	n.seq.Ahead(9 * 24 * time.Hour)
	n.settle(t)
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
		t.Error("and coming back it is not told")
	}
	next(t, again, 100)
}

// TestStreamGoesBack: if another database takes this one's place and lacks its newest events, nobody waits for what has been already.
func TestStreamGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 3)
	n.settle(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	if _, err := w.db.Exec(t.Context(), `
		WITH back AS (DELETE FROM events WHERE stream_seq > 2 RETURNING *), head AS (UPDATE stream SET head = 2)
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT kind, convo_id, seq, size, created_at FROM back ORDER BY stream_seq`); err != nil {
		t.Fatal(err)
	}
	n.hub.LookNow()
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
		t.Errorf("got %v", err)
	}
	n.settle(t)
	want(t, next(t, n.subscribe(t, alice, 3), 2), "2", "3")
}

// TestCloseWhileItGoesLive: whenever a subscription is closed, nothing of it is left behind.
func TestCloseWhileItGoesLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := events.NewPresence(w.db, slog.New(slog.DiscardHandler))
	n := w.node(t, func(c *events.HubConfig) { c.Presence = p })
	n.settle(t)
	w.convo(t, alice)
	n.settle(t)
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

// TestWhoCountsAsConnected: a connection to some convos hides nobody's device, nor does one whose reader may not be there.
func TestWhoCountsAsConnected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := events.NewPresence(w.db, slog.New(slog.DiscardHandler))
	n := w.node(t, func(c *events.HubConfig) { c.Presence = p })
	n.settle(t)
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

// TestLargeEvents: a large message is in memory once, however many have it in hand, and for no more of them than the node has room for.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Large = 25 << 20 })
	n.settle(t)
	convo := w.convo(t, alice, bob)
	results, err := w.log.Append(t.Context(), []messages.Draft{{
		ConvoID: convo, GroupID: convo[:], Sender: alice, Key: "large", Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, strings.Repeat("x", 10<<20-1000)),
		Hash: idem.Content{{Name: "ciphertext", JSON: []byte(`"x"`)}}.Hash(),
	}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	n.settle(t)
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
	case <-time.After(50 * time.Millisecond): // it may be slow to come here, and then this shows nothing
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
