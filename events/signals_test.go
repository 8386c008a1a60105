package events_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"mlsd/events"
	"mlsd/outbox"
)

func init() { // random tests draw the same signals each time; -rapid.seed draws others
	_ = flag.Set("rapid.seed", "1")
	_ = flag.Set("rapid.nofailfile", "true")
}

// signalCounts are the metrics of signals.
type signalCounts struct {
	mu                 sync.Mutex
	carried, delivered int
	dropped            map[string]int
}

func (c *signalCounts) SignalsCarried(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carried += n
}

func (c *signalCounts) SignalsDelivered(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivered += n
}

func (c *signalCounts) SignalsDropped(reason string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[reason] += n
}

// reasons are the reasons for which something was dropped, and how often.
func (c *signalCounts) reasons() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.dropped)
}

// signalNode is a node that passes signals on.
type signalNode struct {
	*node
	*events.Signals
	*signalCounts
	busy atomic.Bool
}

func (w *world) signalNode(t *testing.T, viewers events.Viewers, more ...func(*events.SignalsConfig)) *signalNode {
	t.Helper()
	n := &signalNode{node: w.node(t), signalCounts: &signalCounts{dropped: map[string]int{}}}
	cfg := events.SignalsConfig{
		DB: w.db, Hub: n.hub, Log: slog.New(slog.DiscardHandler), Metrics: n.signalCounts, Viewers: viewers,
		Busy: n.busy.Load,
	}
	for _, set := range more {
		set(&cfg)
	}
	n.Signals = events.NewSignals(cfg)
	return n
}

// listen makes the node pass signals on until the test ends, and returns once it hears them.
func (n *signalNode) listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.Signals.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	n.awaitListening(t)
}

func (n *signalNode) awaitListening(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); !n.Listening(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the node does not listen")
		}
	}
}

// live waits until a subscription is live.
func live(t *testing.T, s *events.Subscription) *events.Subscription {
	t.Helper()
	nothing(t, s)
	return s
}

// hear returns the next event of a subscription, which must be a signal.
func hear(t *testing.T, s *events.Subscription) *events.Signal {
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

func typing(convo uuid.UUID, by syntax.DID, what string) events.Signal {
	return events.Signal{ConvoID: convo, Sender: by, Payload: []byte(what)}
}

func nobodySees(context.Context, uuid.UUID, []syntax.DID, []syntax.DID) (func(viewer, mover syntax.DID) bool, error) {
	return func(syntax.DID, syntax.DID) bool { return false }, nil
}

// A signal reaches all live subscriptions of the convo's members on all nodes, those of its sender
// too. It does not reach outsiders, those who have blocked the sender, subscriptions of other
// convos, and who was removed. It leaves the stream as it is.
func TestSignalsReachConnectedMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.signalNode(t, nobodySees), w.signalNode(t, nobodySees)
	convo, elsewhere := w.convo(t, alice, bob, carol), w.convo(t, alice, bob)
	for _, n := range []*signalNode{one, other} {
		n.publish(t)
		n.listen(t)
	}
	hearing := []*events.Subscription{
		live(t, one.subscribe(t, alice)), live(t, one.subscribe(t, bob)), live(t, other.subscribe(t, bob)),
	}
	blocker := live(t, other.subscribe(t, carol))
	deaf := []*events.Subscription{
		live(t, one.subscribe(t, mallory)),
		live(t, other.subscribeTo(t, events.Request{DID: bob, Convos: []uuid.UUID{elsewhere}})),
	}
	send := func(from *signalNode, s events.Signal) {
		t.Helper()
		if !from.Send(s) {
			t.Fatalf("%q is dropped: %v", s.Payload, from.reasons())
		}
	}
	for i, from := range []*signalNode{one, other} {
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
	send(one, typing(convo, bob, "bob is not blocked"))
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
	send(other, typing(convo, bob, "carol was removed"))
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

// Nothing is passed on while the node cannot hear, or is busy. Each is counted by its reason.
func TestSignalsAreDroppedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	n := w.signalNode(t, nobodySees, func(c *events.SignalsConfig) { c.Now = func() time.Time { return now } })
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := live(t, n.subscribe(t, bob))
	if n.Send(typing(convo, alice, "nobody listens")) {
		t.Error("it was carried without a connection")
	}
	if diff := cmp.Diff(map[string]int{events.DroppedOffline: 1}, n.reasons()); diff != "" {
		t.Error(diff)
	}
	n.busy.Store(true)
	if !n.Busy() || n.reasons()[events.DroppedBusy] != 1 {
		t.Errorf("a busy node: %v", n.reasons())
	}
	// What another node passes on is not delivered either.
	n.Deliver(t.Context(), typing(convo, alice, "messages come first"))
	nothing(t, s)
	if n.reasons()[events.DroppedBusy] != 2 {
		t.Errorf("a busy node: %v", n.reasons())
	}
	n.busy.Store(false)
	n.Deliver(t.Context(), typing(convo, alice, "hello"))
	if got := hear(t, s); string(got.Payload) != "hello" {
		t.Errorf("heard %q", got.Payload)
	}
}

// One convo cannot take what the others are to have, and all together take no more than the node
// has. The clock stands.
func TestLimitsOfSignals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	n := w.signalNode(t, nobodySees, func(c *events.SignalsConfig) { c.Now = func() time.Time { return now } })
	n.SetOnline()
	carried := func(convo uuid.UUID, of int) (carried int) {
		for range of {
			if n.Send(typing(convo, syntax.DID("did:plc:"+convo.String()), "typing")) {
				carried++
			}
		}
		return carried
	}
	if got := carried(uuid.New(), 30); got != 20 {
		t.Errorf("a convo got %d through at once, want 20", got)
	}
	total := 20
	for range 20 {
		total += carried(uuid.New(), 10)
	}
	if total != 100 {
		t.Errorf("a node got %d through at once, want 100", total)
	}
	if diff := cmp.Diff(map[string]int{events.DroppedConvo: 10, events.DroppedRate: 120}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// One caller cannot take what a node has by signals to many convos. A signal that nobody may get
// counts as any other, and is not passed on.
func TestOneCallerCannotTakeAllSignals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	n := w.signalNode(t, nobodySees, func(c *events.SignalsConfig) { c.Now = func() time.Time { return now } })
	n.SetOnline()
	carried := func(by syntax.DID, nobody bool) (carried int) {
		for range 60 {
			s := typing(uuid.New(), by, "typing")
			s.Nobody = nobody
			if n.Send(s) {
				carried++
			}
		}
		return carried
	}
	if a, b := carried(alice, false), carried(bob, true); a != 40 || b != 40 {
		t.Errorf("two callers got %d and %d through at once, want 40 each", a, b)
	}
	if got := n.Waiting(); got != 40 {
		t.Errorf("%d are passed on, want those of one", got)
	}
}

// Moved cursors that a busy node has kept back for long are dropped.
func TestOldMovesAreDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	n := w.signalNode(t, nobodySees, func(c *events.SignalsConfig) { c.Now = func() time.Time { return now } })
	n.Moved(uuid.New(), events.Move{DID: alice, Read: 1})
	now = now.Add(9 * time.Second)
	n.Moved(uuid.New(), events.Move{DID: bob, Read: 1})
	now = now.Add(time.Second)
	if got := n.TakeMoves(); got != 1 {
		t.Errorf("%d moves are passed on, want the one of the last second", got)
	}
	if diff := cmp.Diff(map[string]int{events.DroppedBusy: 1}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// The listener does not wait for look-ups, and keeps no more than a hundred. After one that fails
// the others are dropped.
func TestLookUpsDoNotBlockTheListener(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	looks := 0
	n := w.signalNode(t, func(context.Context, uuid.UUID, []syntax.DID, []syntax.DID) (func(viewer, mover syntax.DID) bool,
		error) {
		looks++
		return nil, errors.New("the database is away")
	})
	convo := w.convo(t, alice, bob)
	n.publish(t)
	live(t, n.subscribe(t, bob))
	moves := events.Signal{ConvoID: convo, Moves: []events.Move{{DID: alice, Read: 1, Delivered: 1}}}
	waiting := 0
	for range 120 {
		waiting = n.Receive(t.Context(), moves)
	}
	if waiting != 100 || looks != 0 {
		t.Errorf("%d wait after %d look-ups, want 100 and none", waiting, looks)
	}
	if n.LookUpNext(t.Context()); looks != 1 {
		t.Errorf("%d look-ups after a failure, want 1", looks)
	}
	if diff := cmp.Diff(map[string]int{events.DroppedRate: 20, events.DroppedFailed: 100}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// A subscription whose buffer is more than half full gets no signals, and all events.
func TestSignalsLeaveSpaceForEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.signalNode(t, nobodySees)
	const buffer = 16 << 10
	n.node = w.node(t, func(c *events.HubConfig) { c.Buffer = buffer })
	n.SetHub(n.hub)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := live(t, n.subscribe(t, bob))
	for range 100 {
		n.Deliver(t.Context(), typing(convo, alice, strings.Repeat("x", 200)))
	}
	behind := n.reasons()[events.DroppedBehind]
	if behind < 80 || behind == 100 {
		t.Fatalf("%d of 100 signals were dropped", behind)
	}
	w.say(t, convo, alice, 5)
	n.publish(t)
	if n.counts.behind != 0 {
		t.Error("events had no space beside signals")
	}
	for range 100 - behind {
		hear(t, s)
	}
	if got := next(t, s, 5); got[4] != "5" {
		t.Errorf("the events are %q", got)
	}
	n.Deliver(t.Context(), typing(convo, alice, "again"))
	hear(t, s)
}

// Moves of one cursor become one, which reaches those who see it. The others get what they see.
func TestMovedCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sees := func(_ context.Context, _ uuid.UUID, movers, viewers []syntax.DID) (func(viewer, mover syntax.DID) bool,
		error) {
		if slices.Contains(movers, mallory) {
			return nil, errors.New("the database is away")
		}
		return func(viewer, mover syntax.DID) bool { return viewer == alice || viewer == bob && mover == alice }, nil
	}
	n := w.signalNode(t, sees)
	convo := w.convo(t, alice, bob, carol)
	n.publish(t)
	all := map[syntax.DID]*events.Subscription{}
	for _, did := range []syntax.DID{alice, bob, carol} {
		all[did] = live(t, n.subscribe(t, did))
	}
	n.busy.Store(true) // a busy node keeps them back
	for i := range int64(50) {
		n.Moved(convo, events.Move{DID: alice, Read: i, Delivered: 60})
		n.Moved(convo, events.Move{DID: bob, Read: 50 - i, Delivered: 50})
	}
	n.listen(t)
	n.busy.Store(false)
	moves := func(did syntax.DID) []events.Move {
		got := hear(t, all[did]).Moves
		slices.SortFunc(got, func(a, b events.Move) int { return strings.Compare(a.DID.String(), b.DID.String()) })
		return got
	}
	ofAlice, ofBob := events.Move{DID: alice, Read: 49, Delivered: 60}, events.Move{DID: bob, Read: 50, Delivered: 50}
	if diff := cmp.Diff([]events.Move{ofAlice, ofBob}, moves(alice)); diff != "" {
		t.Errorf("alice sees (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]events.Move{ofAlice}, moves(bob)); diff != "" {
		t.Errorf("bob sees (-want +got):\n%s", diff)
	}
	nothing(t, all[carol])
	n.Deliver(t.Context(), events.Signal{ConvoID: convo, Moves: []events.Move{{DID: mallory, Read: 1, Delivered: 1}}})
	for deadline := time.Now().Add(patience); n.reasons()[events.DroppedFailed] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a failed look-up is not counted")
		}
	}
	for _, s := range all {
		nothing(t, s)
	}
}

// A node whose connection has ended listens again.
func TestSignalsAfterALostConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.signalNode(t, nobodySees)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := live(t, n.subscribe(t, bob))
	n.listen(t)
	const listen = ` FROM pg_stat_activity WHERE query LIKE 'LISTEN mlsd_signals%' AND datname = current_database()`
	var lost int
	if err := w.db.QueryRow(t.Context(), `SELECT pid, pg_terminate_backend(pid)`+listen).Scan(&lost, nil); err != nil {
		t.Fatalf("no connection listens: %v", err)
	}
	for deadline := time.Now().Add(patience); countRows(t, w.db, `SELECT count(*)`+listen+` AND pid <> $1`, lost) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the node does not connect again")
		}
	}
	n.awaitListening(t)
	if !n.Send(typing(convo, alice, "I am back")) {
		t.Fatalf("dropped: %v", n.reasons())
	}
	if got := hear(t, s); string(got.Payload) != "I am back" {
		t.Errorf("heard %q", got.Payload)
	}
}

// What was taken and cannot be passed on is counted: ciphertexts and cursors.
func TestSignalsThatCannotBePassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.signalNode(t, nobodySees)
	n.SetOnline()
	convo := w.convo(t, alice, bob)
	if !n.Send(typing(convo, alice, "typing")) {
		t.Fatalf("dropped: %v", n.reasons())
	}
	n.Moved(convo, events.Move{DID: alice, Read: 1})
	n.Moved(convo, events.Move{DID: bob, Read: 1})
	if err := n.PassWithoutConnection(t.Context()); err == nil {
		t.Error("passed on without a connection")
	}
	if diff := cmp.Diff(map[string]int{events.DroppedOffline: 3}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// However long the DIDs of members are, their cursors fit into NOTIFY. No DID of an account is
// longer than did:web with the longest host name.
func TestMovesOfLongDIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.signalNode(t, nobodySees)
	convo := uuid.New()
	const people = 100
	for i := range people {
		did := syntax.DID(fmt.Sprintf("did:web:%0253d", i))
		n.Moved(convo, events.Move{DID: did, Read: 1 << 40, Delivered: 1 << 40})
	}
	if err := n.PassWithoutConnection(t.Context()); err == nil {
		t.Error("passed on without a connection")
	}
	if diff := cmp.Diff(map[string]int{events.DroppedOffline: people}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// Signals come out of the payloads of NOTIFY as they went in, in their order, and no payload is too
// long for PostgreSQL.
func TestPack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *events.Signal {
			s := &events.Signal{ConvoID: uuid.New(), Sender: alice,
				Payload: rapid.SliceOfN(rapid.Byte(), 1, 1024).Draw(rt, "payload")}
			for range rapid.IntRange(0, 16).Draw(rt, "hidden") {
				s.Hidden = append(s.Hidden, syntax.DID("did:plc:"+strings.Repeat("x", rapid.IntRange(1, 1500).Draw(rt, "length"))))
			}
			return s
		}), 0, 40).Draw(rt, "signals")
		payloads, tooLong := events.Pack(in)
		var out []*events.Signal
		for _, p := range payloads {
			if len(p) >= 8000 {
				rt.Fatalf("a payload of %d bytes", len(p))
			}
			some, err := events.Unpack(p)
			if err != nil {
				rt.Fatal(err)
			}
			out = append(out, some...)
		}
		if len(out)+tooLong != len(in) {
			rt.Fatalf("%d of %d came out, %d were too long", len(out), len(in), tooLong)
		}
		for _, s := range out {
			if len(in) > 0 && !slices.ContainsFunc(in, func(x *events.Signal) bool { return cmp.Equal(x, s) }) {
				rt.Fatalf("%+v came out", s)
			}
		}
	})
}
