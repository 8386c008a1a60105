package signals_test

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
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"mlsd/events/signals"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

func init() { // random tests draw the same signals each time; -rapid.seed draws others
	_ = flag.Set("rapid.seed", "1")
	_ = flag.Set("rapid.nofailfile", "true")
}

const (
	alice   syntax.DID = "did:plc:alice"
	bob     syntax.DID = "did:plc:bob"
	carol   syntax.DID = "did:plc:carol"
	mallory syntax.DID = "did:plc:mallory"
)

// bufferOf is how many signals a subscription has space for.
const bufferOf = 10

// patience is how long a test waits for a signal that must come.
const patience = time.Minute

// counts are the metrics of signals.
type counts struct {
	mu                 sync.Mutex
	carried, delivered int
	dropped            map[string]int
}

func (c *counts) Carried(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carried += n
}

func (c *counts) Delivered(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivered += n
}

func (c *counts) Dropped(reason string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[reason] += n
}

// reasons are the reasons for which something was dropped, and how often.
func (c *counts) reasons() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.dropped)
}

// hub has one subscription for each person.
type hub struct {
	mu      sync.Mutex
	members map[uuid.UUID][]syntax.DID
	heard   map[syntax.DID]chan *signals.Signal
}

func (h *hub) Live(convo uuid.UUID) int { return len(h.LiveDIDs(convo)) }

func (h *hub) LiveDIDs(convo uuid.UUID) []syntax.DID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.members[convo]
}

func (h *hub) OfferSignal(convo uuid.UUID, of func(syntax.DID) *signals.Signal) (offered, behind int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, did := range h.members[convo] {
		signal := of(did)
		if signal == nil {
			continue
		}
		select {
		case h.heard[did] <- signal:
			offered++
		default:
			behind++
		}
	}
	return offered, behind
}

// convo makes a convo, and connects these members.
func (h *hub) convo(people ...syntax.DID) uuid.UUID {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := uuid.New()
	h.members[id] = people
	for _, did := range people {
		if h.heard[did] == nil {
			h.heard[did] = make(chan *signals.Signal, bufferOf)
		}
	}
	return id
}

// hear returns the next signal that a person gets.
func (h *hub) hear(t *testing.T, did syntax.DID) *signals.Signal {
	t.Helper()
	h.mu.Lock()
	heard := h.heard[did]
	h.mu.Unlock()
	select {
	case s := <-heard:
		return s
	case <-time.After(patience):
		t.Fatalf("%s hears nothing", did)
		return nil
	}
}

// nothing demands that a person has got no more signals.
func (h *hub) nothing(t *testing.T, did syntax.DID) {
	t.Helper()
	h.mu.Lock() // waits for an OfferSignal under way
	defer h.mu.Unlock()
	if n := len(h.heard[did]); n > 0 {
		t.Errorf("%s got %d signals", did, n)
	}
}

// node is what passes signals on, on one node.
type node struct {
	*signals.Carrier
	*counts
	*hub
	db   *pgxpool.Pool
	busy atomic.Bool
}

func newNode(t *testing.T, viewers signals.Viewers, more ...func(*signals.Config)) *node {
	t.Helper()
	n := &node{counts: &counts{dropped: map[string]int{}}, db: pgtest.Database(t),
		hub: &hub{members: map[uuid.UUID][]syntax.DID{}, heard: map[syntax.DID]chan *signals.Signal{}}}
	cfg := signals.Config{
		DB: n.db, Hub: n.hub, Log: slog.New(slog.DiscardHandler), Metrics: n.counts, Viewers: viewers, Busy: n.busy.Load,
	}
	for _, set := range more {
		set(&cfg)
	}
	n.Carrier = signals.NewCarrier(cfg)
	return n
}

// listen makes the node pass signals on until the test ends, and returns once it hears them.
func (n *node) listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	n.awaitListening(t)
}

func (n *node) awaitListening(t *testing.T) {
	t.Helper()
	await.Until(t, "the node listens", n.Listening)
}

func typing(convo uuid.UUID, by syntax.DID, what string) signals.Signal {
	return signals.Signal{ConvoID: convo, Sender: by, Payload: []byte(what)}
}

func nobodySees(context.Context, uuid.UUID, []syntax.DID, []syntax.DID) (func(viewer, mover syntax.DID) bool, error) {
	return func(syntax.DID, syntax.DID) bool { return false }, nil
}

// Nothing is passed on while the node cannot hear, or is busy. Each is counted by its reason.
func TestSignalsAreDroppedFirst(t *testing.T) {
	t.Parallel()
	now := time.Now()
	n := newNode(t, nobodySees, func(c *signals.Config) { c.Now = func() time.Time { return now } })
	convo := n.convo(bob)
	if n.Send(typing(convo, alice, "nobody listens")) {
		t.Error("it was carried without a connection")
	}
	if diff := cmp.Diff(map[string]int{signals.DroppedOffline: 1}, n.reasons()); diff != "" {
		t.Error(diff)
	}
	n.busy.Store(true)
	if !n.Busy() || n.reasons()[signals.DroppedBusy] != 1 {
		t.Errorf("a busy node: %v", n.reasons())
	}
	// What another node passes on is not delivered either.
	n.Deliver(t.Context(), typing(convo, alice, "messages come first"))
	n.nothing(t, bob)
	if n.reasons()[signals.DroppedBusy] != 2 {
		t.Errorf("a busy node: %v", n.reasons())
	}
	n.busy.Store(false)
	n.Deliver(t.Context(), typing(convo, alice, "hello"))
	if got := n.hear(t, bob); string(got.Payload) != "hello" {
		t.Errorf("heard %q", got.Payload)
	}
	for range bufferOf + 3 {
		n.Deliver(t.Context(), typing(convo, alice, "hello"))
	}
	if got := n.reasons()[signals.DroppedBehind]; got != 3 {
		t.Errorf("%d signals had no space, want 3", got)
	}
}

// One convo cannot take what the others are to have, and all together take no more than the node
// has. The clock stands.
func TestLimitsOfSignals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	n := newNode(t, nobodySees, func(c *signals.Config) { c.Now = func() time.Time { return now } })
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
	if diff := cmp.Diff(map[string]int{signals.DroppedConvo: 10, signals.DroppedRate: 120}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// One caller cannot take what a node has by signals to many convos. A signal that nobody may get
// counts as any other, and is not passed on.
func TestOneCallerCannotTakeAllSignals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	n := newNode(t, nobodySees, func(c *signals.Config) { c.Now = func() time.Time { return now } })
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
	now := time.Now()
	n := newNode(t, nobodySees, func(c *signals.Config) { c.Now = func() time.Time { return now } })
	n.Moved(uuid.New(), signals.Move{DID: alice, Read: 1})
	now = now.Add(9 * time.Second)
	n.Moved(uuid.New(), signals.Move{DID: bob, Read: 1})
	now = now.Add(time.Second)
	if got := n.TakeMoves(); got != 1 {
		t.Errorf("%d moves are passed on, want the one of the last second", got)
	}
	if diff := cmp.Diff(map[string]int{signals.DroppedBusy: 1}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// The listener does not wait for look-ups, and keeps no more than a hundred. After one that fails
// the others are dropped.
func TestLookUpsDoNotBlockTheListener(t *testing.T) {
	t.Parallel()
	looks := 0
	n := newNode(t, func(context.Context, uuid.UUID, []syntax.DID, []syntax.DID) (func(viewer, mover syntax.DID) bool,
		error) {
		looks++
		return nil, errors.New("the database is away")
	})
	convo := n.convo(bob)
	moves := signals.Signal{ConvoID: convo, Moves: []signals.Move{{DID: alice, Read: 1, Delivered: 1}}}
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
	if diff := cmp.Diff(map[string]int{signals.DroppedRate: 20, signals.DroppedFailed: 100}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// Moves of one cursor become one, which reaches those who see it. The others get what they see.
func TestMovedCursors(t *testing.T) {
	t.Parallel()
	sees := func(_ context.Context, _ uuid.UUID, movers, viewers []syntax.DID) (func(viewer, mover syntax.DID) bool,
		error) {
		if slices.Contains(movers, mallory) {
			return nil, errors.New("the database is away")
		}
		return func(viewer, mover syntax.DID) bool { return viewer == alice || viewer == bob && mover == alice }, nil
	}
	n := newNode(t, sees)
	convo := n.convo(alice, bob, carol)
	n.busy.Store(true) // a busy node keeps them back
	for i := range int64(50) {
		n.Moved(convo, signals.Move{DID: alice, Read: i, Delivered: 60})
		n.Moved(convo, signals.Move{DID: bob, Read: 50 - i, Delivered: 50})
	}
	n.listen(t)
	n.busy.Store(false)
	moves := func(did syntax.DID) []signals.Move {
		got := n.hear(t, did).Moves
		slices.SortFunc(got, func(a, b signals.Move) int { return strings.Compare(a.DID.String(), b.DID.String()) })
		return got
	}
	ofAlice, ofBob := signals.Move{DID: alice, Read: 49, Delivered: 60}, signals.Move{DID: bob, Read: 50, Delivered: 50}
	if diff := cmp.Diff([]signals.Move{ofAlice, ofBob}, moves(alice)); diff != "" {
		t.Errorf("alice sees (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]signals.Move{ofAlice}, moves(bob)); diff != "" {
		t.Errorf("bob sees (-want +got):\n%s", diff)
	}
	n.nothing(t, carol)
	n.Deliver(t.Context(), signals.Signal{ConvoID: convo, Moves: []signals.Move{{DID: mallory, Read: 1, Delivered: 1}}})
	await.Until(t, "a failed look-up is counted", func() bool { return n.reasons()[signals.DroppedFailed] > 0 })
	for _, did := range []syntax.DID{alice, bob, carol} {
		n.nothing(t, did)
	}
}

// A node whose connection has ended listens again.
func TestSignalsAfterALostConnection(t *testing.T) {
	t.Parallel()
	n := newNode(t, nobodySees)
	convo := n.convo(alice, bob)
	n.listen(t)
	const listen = ` FROM pg_stat_activity WHERE query LIKE 'LISTEN mlsd_signals%' AND datname = current_database()`
	var lost int
	if err := n.db.QueryRow(t.Context(), `SELECT pid, pg_terminate_backend(pid)`+listen).Scan(&lost, nil); err != nil {
		t.Fatalf("no connection listens: %v", err)
	}
	await.Until(t, "the node connects again", func() (again bool) {
		if err := n.db.QueryRow(t.Context(), `SELECT count(*) > 0`+listen+` AND pid <> $1`, lost).Scan(&again); err != nil {
			t.Fatal(err)
		}
		return again
	})
	n.awaitListening(t)
	if !n.Send(typing(convo, alice, "I am back")) {
		t.Fatalf("dropped: %v", n.reasons())
	}
	if got := n.hear(t, bob); string(got.Payload) != "I am back" {
		t.Errorf("heard %q", got.Payload)
	}
}

// What was taken and cannot be passed on is counted: ciphertexts and cursors.
func TestSignalsThatCannotBePassedOn(t *testing.T) {
	t.Parallel()
	n := newNode(t, nobodySees)
	n.SetOnline()
	convo := n.convo(alice, bob)
	if !n.Send(typing(convo, alice, "typing")) {
		t.Fatalf("dropped: %v", n.reasons())
	}
	n.Moved(convo, signals.Move{DID: alice, Read: 1})
	n.Moved(convo, signals.Move{DID: bob, Read: 1})
	if err := n.PassWithoutConnection(t.Context()); err == nil {
		t.Error("passed on without a connection")
	}
	if diff := cmp.Diff(map[string]int{signals.DroppedOffline: 3}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// However long the DIDs of members are, their cursors fit into NOTIFY. No DID of an account is
// longer than did:web with the longest host name.
func TestMovesOfLongDIDs(t *testing.T) {
	t.Parallel()
	n := newNode(t, nobodySees)
	convo := uuid.New()
	const people = 100
	for i := range people {
		did := syntax.DID(fmt.Sprintf("did:web:%0253d", i))
		n.Moved(convo, signals.Move{DID: did, Read: 1 << 40, Delivered: 1 << 40})
	}
	if err := n.PassWithoutConnection(t.Context()); err == nil {
		t.Error("passed on without a connection")
	}
	if diff := cmp.Diff(map[string]int{signals.DroppedOffline: people}, n.reasons()); diff != "" {
		t.Error(diff)
	}
}

// Signals come out of the payloads of NOTIFY as they went in, in their order, and no payload is too
// long for PostgreSQL.
func TestPack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *signals.Signal {
			s := &signals.Signal{ConvoID: uuid.New(), Sender: alice,
				Payload: rapid.SliceOfN(rapid.Byte(), 1, 1024).Draw(rt, "payload")}
			for range rapid.IntRange(0, 16).Draw(rt, "hidden") {
				s.Hidden = append(s.Hidden, syntax.DID("did:plc:"+strings.Repeat("x", rapid.IntRange(1, 1500).Draw(rt, "length"))))
			}
			return s
		}), 0, 40).Draw(rt, "signals")
		payloads, tooLong := signals.Pack(in)
		var out []*signals.Signal
		for _, p := range payloads {
			if len(p) >= 8000 {
				rt.Fatalf("a payload of %d bytes", len(p))
			}
			some, err := signals.Unpack(p)
			if err != nil {
				rt.Fatal(err)
			}
			out = append(out, some...)
		}
		if len(out)+tooLong != len(in) {
			rt.Fatalf("%d of %d came out, %d were too long", len(out), len(in), tooLong)
		}
		for _, s := range out {
			if len(in) > 0 && !slices.ContainsFunc(in, func(x *signals.Signal) bool { return cmp.Equal(x, s) }) {
				rt.Fatalf("%+v came out", s)
			}
		}
	})
}
