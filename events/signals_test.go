package events_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/internal/await"
	"mlsd/outbox"
)

// uncountedSignals counts no signals.
type uncountedSignals struct{}

func (uncountedSignals) Carried(int)         {}
func (uncountedSignals) Dropped(string, int) {}
func (uncountedSignals) Delivered(int)       {}

// carry makes a node pass signals on until the test ends, and returns once it hears them.
func (n *node) carry(t *testing.T, w *world) *signals.Carrier {
	t.Helper()
	c := signals.NewCarrier(signals.Config{
		DB: w.db, Hub: n.hub, Log: slog.New(slog.DiscardHandler), Metrics: uncountedSignals{},
		Busy: func() bool { return false },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	probe := func() signals.Signal { return signals.Signal{ConvoID: uuid.New(), Sender: mallory, Nobody: true} }
	await.Until(t, "the node listens", func() bool { return c.Send(probe()) })
	return c
}

// live waits until a subscription is live.
func live(t *testing.T, s *events.Subscription) *events.Subscription {
	t.Helper()
	nothing(t, s)
	return s
}

// hear returns the next event of a subscription, which must be a signal.
func hear(t *testing.T, s *events.Subscription) *signals.Signal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if e.Signal == nil || e.StreamSeq != 0 {
		t.Fatalf("no signal: %+v", e)
	}
	return e.Signal
}

func typing(convo uuid.UUID, by syntax.DID, what string) *signals.Signal {
	return &signals.Signal{ConvoID: convo, Sender: by, Payload: []byte(what)}
}

// A signal reaches all live subscriptions of the convo's members on all nodes, those of its sender
// too. It does not reach outsiders, those who have blocked the sender, subscriptions of other
// convos, and who was removed. It leaves the stream as it is.
func TestSignalsReachConnectedMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.node(t), w.node(t)
	convo, elsewhere := w.convo(t, alice, bob, carol), w.convo(t, alice, bob)
	one.publish(t)
	other.publish(t)
	fromOne, fromOther := one.carry(t, w), other.carry(t, w)
	hearing := []*events.Subscription{
		live(t, one.subscribe(t, alice)), live(t, one.subscribe(t, bob)), live(t, other.subscribe(t, bob)),
	}
	blocker := live(t, other.subscribe(t, carol))
	deaf := []*events.Subscription{
		live(t, one.subscribe(t, mallory)),
		live(t, other.subscribeTo(t, events.Request{DID: bob, Convos: []uuid.UUID{elsewhere}})),
	}
	send := func(from *signals.Carrier, s *signals.Signal) {
		t.Helper()
		if !from.Send(*s) {
			t.Fatalf("%q is dropped", s.Payload)
		}
	}
	for i, from := range []*signals.Carrier{fromOne, fromOther} {
		signal := typing(convo, alice, fmt.Sprintf("signal %d", i))
		signal.Hidden = []syntax.DID{carol}
		send(from, signal)
		for _, s := range hearing {
			if got := hear(t, s); got.Sender != alice || got.ConvoID != convo || string(got.Payload) != string(signal.Payload) {
				t.Errorf("heard %+v", got)
			}
		}
	}
	for _, s := range append(deaf, blocker) {
		nothing(t, s)
	}
	send(fromOne, typing(convo, bob, "bob is not blocked"))
	for _, s := range append(hearing, blocker) {
		if got := hear(t, s); got.Sender != bob {
			t.Errorf("heard %+v", got)
		}
	}
	w.must(t, convo, carol, outbox.Removed)
	one.publish(t)
	other.publish(t)
	for _, s := range append(hearing, blocker) {
		next(t, s, 1)
	}
	send(fromOther, typing(convo, bob, "carol was removed"))
	for _, s := range hearing {
		hear(t, s)
	}
	nothing(t, blocker)
	w.say(t, convo, alice, 1)
	one.publish(t)
	if got := next(t, hearing[0], 1); got[0] != "1" {
		t.Errorf("after the signals: %q", got)
	}
}

// A subscription whose buffer is more than half full gets no signals, and all events.
func TestSignalsLeaveSpaceForEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 16 << 10 })
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := live(t, n.subscribe(t, bob))
	offer := func(what string) (behind int) {
		signal := typing(convo, alice, what)
		_, behind = n.hub.OfferSignal(convo, func(syntax.DID) *signals.Signal { return signal })
		return behind
	}
	behind := 0
	for range 100 {
		behind += offer(strings.Repeat("x", 200))
	}
	if behind < 80 || behind == 100 {
		t.Fatalf("%d of 100 signals were dropped", behind)
	}
	w.say(t, convo, alice, 5)
	n.publish(t)
	if n.behind != 0 {
		t.Error("events had no space beside signals")
	}
	for range 100 - behind {
		hear(t, s)
	}
	if got := next(t, s, 5); got[4] != "5" {
		t.Errorf("the events are %q", got)
	}
	offer("again")
	hear(t, s)
}

// The subscriptions of a convo share the event of a signal, so that it is encoded once.
func TestSubscriptionsShareTheEventOfASignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	all := []*events.Subscription{
		live(t, n.subscribe(t, alice)), live(t, n.subscribe(t, bob)), live(t, n.subscribe(t, bob)),
	}
	toBob, toAlice := typing(convo, carol, "to bob"), typing(convo, carol, "to alice")
	n.hub.OfferSignal(convo, func(did syntax.DID) *signals.Signal {
		if did == bob {
			return toBob
		}
		return toAlice
	})
	var got []*events.Event
	for _, s := range all {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if got[0].Signal != toAlice || got[1].Signal != toBob || got[2] != got[1] {
		t.Errorf("the events are %+v", got)
	}
	if dids := n.hub.LiveDIDs(convo); n.hub.Live(convo) != 3 || len(dids) != 2 || !slices.Contains(dids, bob) {
		t.Errorf("live: %d subscriptions of %q", n.hub.Live(convo), dids)
	}
}
