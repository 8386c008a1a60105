package events_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/internal/await"
	"mlsd/outbox"
)

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

// TestEverythingInOrder: the events of a convo come to its members, in their order, and to no one
// else.
func TestEverythingInOrder(t *testing.T) {
	t.Parallel()
	w, n := newNode(t)
	a, b, m := n.subscribe(t, alice), n.subscribe(t, bob), n.subscribe(t, mallory)
	convo := w.convo(t, alice, bob)
	w.say(t, convo, alice, 2)
	w.must(t, convo, bob, outbox.Left)
	w.say(t, convo, alice, 1)
	n.publish(t)
	want(t, next(t, a, 6), "alice joined", "bob joined", "1", "2", "bob left", "3")
	want(t, next(t, b, 4), "bob joined", "1", "2", "bob left")
	nothing(t, a)
	nothing(t, b)
	nothing(t, m)
}

// TestLateConvo (late-convo): a subscriber that joins a convo after connecting gets the convo's
// events from then on.
func TestLateConvo(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice)
	s := n.subscribe(t, bob)
	nothing(t, s) // it is live now
	w.say(t, convo, alice, 1)
	w.must(t, convo, bob, outbox.Joined)
	w.say(t, convo, alice, 1)
	n.publish(t)
	want(t, next(t, s, 2), "bob joined", "2")
	nothing(t, s)
}

// TestRemovedStillStreams (removed-still-streams): a removed member gets the event of the removal
// and none after it, live or by catching up. If it joins again, it gets the events from then on.
func TestRemovedStillStreams(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice, bob, carol)
	live := n.subscribe(t, bob)
	nothing(t, live)
	w.say(t, convo, alice, 1)
	w.must(t, convo, bob, outbox.Removed)
	w.must(t, convo, carol, outbox.Left) // with no log entry in between
	w.say(t, convo, alice, 1)
	n.publish(t)
	seen := []string{"1", "bob removed"}
	want(t, next(t, live, 2), seen...)
	nothing(t, live)
	before := []string{"alice joined", "bob joined", "carol joined"}
	before = before[1:] // bob's events begin with his own joining
	want(t, next(t, n.subscribe(t, bob, 0), 4), append(before, seen...)...)

	w.must(t, convo, bob, outbox.Joined)
	w.say(t, convo, alice, 1)
	n.publish(t)
	want(t, next(t, live, 2), "bob joined", "3")
	again := n.subscribe(t, bob, 0)
	want(t, next(t, again, 6), append(append(before, seen...), "bob joined", "3")...)
	nothing(t, again)
}

// TestLateMembership: a membership can change between the cursor and the roster of now, even by an
// event that is still in the outbox.
func TestLateMembership(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice, bob)
	w.must(t, convo, bob, outbox.Left)
	w.must(t, convo, carol, outbox.Joined)
	leaving, joining := n.subscribe(t, bob), n.subscribe(t, carol)
	nothing(t, leaving) // they are live before the hub has the events
	nothing(t, joining)
	w.say(t, convo, alice, 1)
	n.publish(t)
	want(t, next(t, leaving, 1), "bob left")
	want(t, next(t, joining, 2), "carol joined", "1")
	nothing(t, leaving)
}

// TestFilter: a subscription to some convos gets only their events.
func TestFilter(t *testing.T) {
	t.Parallel()
	w, n := newNode(t)
	one, two := w.convo(t, alice), w.convo(t, alice)
	for _, cursor := range []*events.Cursor{nil, new(events.From(0))} {
		s := n.subscribeTo(t, events.Request{DID: alice, Convos: []uuid.UUID{two, uuid.New()}, Cursor: cursor})
		if cursor == nil {
			nothing(t, s)
		}
		w.say(t, one, alice, 1)
		w.say(t, two, alice, 1)
		n.publish(t)
		seen := []string{"alice joined", "1"} // even live: they had not been handed out yet
		if cursor != nil {
			seen = append(seen, "2")
		}
		want(t, next(t, s, len(seen)), seen...)
		nothing(t, s)
	}
}

// TestCursor: a cursor is the first event that comes. A cursor ahead of the stream is refused, and
// one older than the stream is outdated.
func TestCursor(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 4, alice)
	want(t, next(t, n.subscribe(t, alice, 4), 2), "3", "4")
	want(t, next(t, n.subscribe(t, alice, 0), 5), "alice joined", "1", "2", "3", "4")
	end := n.subscribe(t, alice, 6)
	nothing(t, end)
	if end.Outdated {
		t.Error("the end of the stream is outdated")
	}
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: alice, Cursor: new(events.From(7))}); !errors.Is(err,
		events.ErrFutureCursor) {
		t.Errorf("ahead of the stream: %v", err)
	}
	other := w.node(t) // it has not read the end of the stream
	if _, err := other.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.say(t, convo, alice, 1)
	if _, err := n.seq.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := other.subscribe(t, alice, 7)
	nothing(t, s)
	w.say(t, convo, alice, 1)
	if _, err := n.seq.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, next(t, s, 1), "6")
}

// TestRetention: events are dropped by the day, when they are old enough. The newest event stays. A
// cursor older than the oldest event kept is outdated.
func TestRetention(t *testing.T) {
	t.Parallel()
	w, n := newNode(t)
	convo := w.convo(t, alice) // event 1
	n.publish(t)
	for day := 1; day <= 9; day++ { // events 2 to 10
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 1)
		n.publish(t)
	}
	s := n.subscribe(t, alice, 1)
	if !s.Outdated {
		t.Error("a cursor from before what is kept is not outdated")
	}
	want(t, next(t, s, 8), "2", "3", "4", "5", "6", "7", "8", "9") // of today and seven days before
	if s := n.subscribe(t, alice, 3); s.Outdated {
		t.Error("a cursor at the oldest event is outdated")
	}
	if s := n.subscribe(t, alice, 0); s.Outdated {
		t.Error("all that is kept is outdated")
	}
	n.seq.Ahead(100 * 24 * time.Hour)
	n.publish(t)
	kept := n.subscribe(t, alice, 10)
	if kept.Outdated {
		t.Error("the newest event was dropped")
	}
	want(t, next(t, kept, 1), "9")
	n.seq.Ahead(0) // the clock goes back, and the days do not
	w.say(t, convo, alice, 1)
	n.publish(t)
	want(t, next(t, kept, 1), "10")
}

// TestBigserialGap (bigserial-gap): a transaction that got its outbox id early and commits late is
// not skipped, and others do not wait for it.
func TestBigserialGap(t *testing.T) {
	t.Parallel()
	w, n := newNode(t)
	early, late := w.convo(t, alice), w.convo(t, bob)
	n.publish(t)
	a, b := n.subscribe(t, alice), n.subscribe(t, bob)
	nothing(t, a)
	nothing(t, b)
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `
		WITH m AS (
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT id, 1, 1, 'did:plc:alice', 1, $2, 'k', '', now() FROM convos WHERE id = $1
		), advanced AS (
			UPDATE convos SET last_seq = 1 WHERE id = $1
		)
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) VALUES (1, $1, 1, 2, now())`, early, messageOf(early))
	if err != nil {
		t.Fatal(err)
	}
	w.say(t, late, bob, 3)
	n.publish(t)
	want(t, next(t, b, 3), "1", "2", "3")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.publish(t)
	want(t, next(t, a, 1), "1")
}

// TestSixteenWriters: what sixteen writers commit at once is in the stream once, with no gap, in
// the order of each convo. Readers that come and go at random on two nodes get each event once.
func TestSixteenWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const writers, each, convos = 16, 60, 8
	one, two := w.node(t), w.node(t)
	one.run(t)
	two.run(t)
	ids := make([]uuid.UUID, convos)
	for i := range ids {
		ids[i] = w.convo(t, alice, bob)
	}
	var writing, reading sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for i := range writers {
		writing.Go(func() {
			for k := range each {
				if _, err := w.send(t.Context(), ids[(i*each+k)%convos], alice, fmt.Sprint(i, " ", k), "hello"); err != nil {
					t.Errorf("writer %d: %v", i, err)
				}
			}
		})
	}
	const total = writers*each + convos // bob's joinings are the last events of the setup
	for r := range 6 {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(r)))
			seen, seqs, cursor := 0, map[uuid.UUID]int64{}, int64(0)
			for seen < total {
				n := one
				if rng.IntN(2) == 0 {
					n = two
				}
				s, err := n.hub.Subscribe(ctx, events.Request{DID: bob, Cursor: new(events.From(cursor))})
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + rng.IntN(300) {
					if seen == total {
						break
					}
					e, err := (*events.Event)(nil), error(nil)
					if rng.IntN(2) == 0 {
						e = s.More()
					}
					if e == nil {
						e, err = s.Next(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
					if e.StreamSeq < cursor {
						t.Errorf("event %d came again", e.StreamSeq)
					}
					if e.Kind.LogEntry() {
						if e.Seq != seqs[e.ConvoID]+1 {
							t.Errorf("convo %s: %d after %d", e.ConvoID, e.Seq, seqs[e.ConvoID])
						}
						seqs[e.ConvoID] = e.Seq
					}
					seen++
					cursor = e.StreamSeq + 1
				}
				s.Close()
			}
		})
	}
	writing.Wait()
	reading.Wait()
	var n, last int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*), max(stream_seq) FROM events`).Scan(&n, &last); err != nil ||
		n != last || n != writers*each+2*convos {
		t.Errorf("%d events up to %d, %v", n, last, err)
	}
}

// TestCatchupFillsLive (catchup-fills-live): a subscription catches up with much more than its
// buffer holds, while more is written.
func TestCatchupFillsLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 4000 })
	n.publish(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 450)
	n.publish(t)
	s := n.subscribe(t, alice, 0)
	want(t, next(t, s, 2), "alice joined", "1")
	w.say(t, convo, alice, 50) // while the subscription is behind
	n.publish(t)
	for i := 2; i <= 500; i++ {
		want(t, next(t, s, 1), fmt.Sprint(i))
	}
	nothing(t, s)
	if n.behind > 0 && n.pages < 3 {
		t.Errorf("its buffer was full %d times, and it read %d pages", n.behind, n.pages)
	}
}

// TestLagDropped (lag-dropped): a subscription whose buffer is full loses no event. It reads the
// table, and becomes live again.
func TestLagDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 4000 })
	n.publish(t)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	slow, other := n.subscribe(t, alice), n.subscribe(t, bob)
	nothing(t, slow)
	nothing(t, other)
	for i := 1; i <= 50; i++ {
		w.say(t, convo, alice, 1)
		n.publish(t)
		want(t, next(t, other, 1), fmt.Sprint(i))
	}
	if slow.Live() {
		t.Fatal("fifty events fit into a buffer for five")
	}
	for i := 1; i <= 50; i++ {
		want(t, next(t, slow, 1), fmt.Sprint(i))
	}
	nothing(t, slow)
	if !slow.Live() {
		t.Error("it has caught up and is not live")
	}
}

// TestEndedContext: an event that could not be loaded before the caller's context ended is returned
// by the next call.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 32 << 20 })
	n.publish(t)
	convo := w.convo(t, alice)
	n.publish(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	large := strings.Repeat("x", 5<<20) // the hub does not read two of them ahead
	for _, key := range []string{"one", "two"} {
		if _, err := w.send(t.Context(), convo, alice, key, large); err != nil {
			t.Fatal(err)
		}
	}
	n.publish(t)
	want(t, next(t, s, 1), "1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := s.Next(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %+v, %v", e, err)
	}
	want(t, next(t, s, 1), "2")
	nothing(t, s)
}

// TestMore: More hands out what waits, in order. It leaves an event for Next that is large, so that it
// is counted, and one whose log entry is still to be read.
func TestMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 16 << 20 })
	n.publish(t)
	convo := w.convo(t, alice)
	n.publish(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	send := func(sizes ...int) {
		t.Helper()
		for _, size := range sizes {
			if _, err := w.send(t.Context(), convo, alice, strconv.Itoa(size), strings.Repeat("x", size)); err != nil {
				t.Fatal(err)
			}
		}
		n.publish(t)
	}
	// wants expects an entry from Next, those after it from More, and then none from More.
	wants := func(seqs ...int64) {
		t.Helper()
		e, err := s.Next(t.Context())
		for _, seq := range seqs {
			if err != nil || e == nil || e.Seq != seq || e.Message() == nil {
				t.Fatalf("got %+v, %v; want entry %d", e, err, seq)
			}
			e = s.More()
		}
		if e != nil {
			t.Fatalf("after entry %d: More returned entry %d", seqs[len(seqs)-1], e.Seq)
		}
	}
	send(10, 20, 100<<10, 30)
	wants(1, 2)
	wants(3, 4)
	// The hub reads ahead all but the fifth: 8 MiB are full.
	const most = 2<<20 - 4<<10
	send(most, most+1, most+2, most+3, 60<<10, 40)
	for seq := range int64(4) {
		wants(5 + seq)
	}
	wants(9, 10)
	nothing(t, s)
	if _, err := w.send(t.Context(), convo, alice, "last", "x"); err != nil {
		t.Fatal(err)
	}
	n.publish(t)
	s.Close()
	if e := s.More(); e != nil {
		t.Errorf("after Close: %+v", e)
	}
}

// TestPatience: a subscription that stays behind ends with ErrConsumerTooSlow.
func TestPatience(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer, c.Patience = 4000, time.Nanosecond })
	n.publish(t)
	convo := w.convo(t, alice)
	n.publish(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	w.say(t, convo, alice, 50)
	n.publish(t)
	var err error
	for err == nil {
		_, err = s.Next(t.Context())
	}
	if !errors.Is(err, events.ErrConsumerTooSlow) {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrConsumerTooSlow) {
		t.Fatalf("and then: %v", err)
	}
}

// TestHubForgets: a subscription that is further behind than the hub remembers reads the table
// until it has caught up.
func TestHubForgets(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice)
	s := n.subscribe(t, alice)
	w.say(t, convo, alice, 3)
	n.publish(t)
	n.hub.Forget(t, 1)
	want(t, next(t, s, 3), "1", "2", "3")
	nothing(t, s)
}

// TestLimits: the number of subscriptions of one DID is limited, and a closed hub refuses all.
func TestLimits(t *testing.T) {
	t.Parallel()
	_, n := newNode(t)
	var last *events.Subscription
	for range 16 {
		last = n.subscribe(t, alice)
	}
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: alice}); !errors.Is(err, events.ErrTooMany) {
		t.Fatalf("the seventeenth: %v", err)
	}
	last.Close()
	last.Close()
	again := n.subscribe(t, alice)
	n.hub.Close()
	if _, err := again.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
		t.Errorf("of a closed hub: %v", err)
	}
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: bob}); !errors.Is(err, events.ErrClosing) {
		t.Errorf("to a closed hub: %v", err)
	}
}

// TestOneLeader: one node of several leads. When its session ends another one leads at once, and no
// event is moved twice or left.
func TestOneLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nodes := []*node{w.node(t), w.node(t), w.node(t)}
	convo := w.convo(t, alice)
	for i := range 9 {
		w.say(t, convo, alice, 2)
		leaders := 0
		for _, n := range nodes {
			n.seq.TryNow()
			if _, err := n.seq.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n.seq.Leads() {
				leaders++
			}
		}
		if leaders != 1 {
			t.Fatalf("%d leaders", leaders)
		}
		nodes[i%3].seq.Resign()
	}
	reader := w.node(t)
	s := func() *events.Subscription {
		reader.publish(t)
		return reader.subscribe(t, alice, 0)
	}()
	next(t, s, 19)
	nothing(t, s)
}

// takeOver makes a node lead in the place of a leader that has stalled.
func (w *world) takeOver(t *testing.T, n *node) {
	t.Helper()
	await.Until(t, "a node leads", func() bool {
		exec(t, w.db, `SELECT pg_sleep(0.05)`) // a leader counts as stalled after a second
		n.round(t)
		return n.seq.Leads()
	})
}

// TestFrozenLeader: the session of a leader that has stalled is ended. The old leader can do
// nothing when it continues.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	frozen, other := w.node(t), w.node(t)
	frozen.publish(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 1)
	w.takeOver(t, other)
	if _, err := frozen.seq.Round(t.Context()); err == nil {
		t.Fatal("the old leader went on")
	}
	frozen.seq.Resign()
	other.publish(t)
	want(t, next(t, other.subscribe(t, alice, 0), 2), "alice joined", "1")
}

// TestWakes: what the clients of one node write reaches the subscribers of another node without
// waiting for a poll. It does not matter which node leads.
func TestWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.node(t), w.node(t)
	a.run(t)
	b.run(t)
	convo := w.convo(t, alice)
	subs := []*events.Subscription{a.subscribe(t, alice, 0), b.subscribe(t, alice, 0)}
	for i, n := range []*node{a, b, a, b} {
		w.say(t, convo, alice, 1)
		n.seq.Wake()
		for _, s := range subs {
			for got := ""; got != fmt.Sprint(i+1); got = next(t, s, 1)[0] {
				continue
			}
		}
	}
}

// TestLostConnections: the sessions of all nodes are ended repeatedly, and subscribers miss no
// event.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.node(t), w.node(t)
	a.run(t)
	b.run(t)
	convo := w.convo(t, alice, bob)
	subs := []*events.Subscription{a.subscribe(t, bob, 0), b.subscribe(t, bob, 0)}
	const n = 60
	go func() {
		for i := range n {
			for t.Context().Err() == nil {
				if _, err := w.send(t.Context(), convo, alice, fmt.Sprint(i), "hello"); err == nil {
					break
				}
			}
			if i%15 == 7 {
				// Writers whose session ends here try again.
				_, _ = w.db.Exec(t.Context(), `
					SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <>
						pg_backend_pid()`)
			}
		}
	}()
	for _, s := range subs {
		got := next(t, s, n+1)
		if got[0] != "bob joined" || got[n] != fmt.Sprint(n) {
			t.Errorf("%q", got)
		}
	}
}

// TestShared: the subscribers of one convo share the encoding of an event.
func TestShared(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice, bob)
	subs := []*events.Subscription{n.subscribe(t, alice), n.subscribe(t, bob)}
	for _, s := range subs {
		nothing(t, s)
	}
	w.say(t, convo, alice, 1)
	n.publish(t)
	encoded := 0
	for _, s := range subs {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wire := e.Encoded(events.Frame, func(e *events.Event) []byte {
			encoded++
			return []byte(strings.ToUpper(e.Message().Sender.String()))
		})
		if string(wire) != "DID:PLC:ALICE" {
			t.Errorf("%q", wire)
		}
	}
	if encoded != 1 {
		t.Errorf("encoded %d times", encoded)
	}
}

// TestEntitlement compares the events of members that come and go with a model, live and from the
// beginning, with and without events in the hub's memory.
func TestEntitlement(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.node(t, func(c *events.HubConfig) { c.Buffer = 3000 })
			n.publish(t)
			rng := rand.New(rand.NewPCG(seed, 2))
			people := []syntax.DID{alice, bob, carol}
			convos := []uuid.UUID{w.convo(t, mallory), w.convo(t, mallory)}
			model := map[syntax.DID][]string{}
			in := map[string]bool{}
			seqs := map[uuid.UUID]int{}
			live := map[syntax.DID]*events.Subscription{}
			for _, p := range people {
				live[p] = n.subscribe(t, p)
			}
			for range 120 {
				convo := convos[rng.IntN(2)]
				switch p := people[rng.IntN(3)]; rng.IntN(5) {
				case 0:
					change, was := outbox.Joined, in[convo.String()+p.String()]
					if was {
						change = outbox.Left
					}
					w.must(t, convo, p, change)
					in[convo.String()+p.String()] = true
					for _, q := range people {
						if in[convo.String()+q.String()] {
							model[q] = append(model[q], fmt.Sprintf("%s %s", p[len("did:plc:"):], change))
						}
					}
					in[convo.String()+p.String()] = !was
				case 1:
					n.publish(t)
				case 2:
					if rng.IntN(4) == 0 {
						n.hub.Forget(t, 1)
					}
				default:
					several := slices.Repeat([]uuid.UUID{convo}, 1+rng.IntN(2))
					w.sayTogether(t, mallory, several...)
					for range several {
						seqs[convo]++
						for _, q := range people {
							if in[convo.String()+q.String()] {
								model[q] = append(model[q], fmt.Sprint(seqs[convo]))
							}
						}
					}
				}
			}
			n.publish(t)
			for _, p := range people {
				if len(model[p]) == 0 {
					continue
				}
				want(t, next(t, live[p], len(model[p])), model[p]...)
				nothing(t, live[p])
				fresh := n.subscribe(t, p, 0)
				want(t, next(t, fresh, len(model[p])), model[p]...)
				nothing(t, fresh)
			}
		})
	}
}

// TestPerTypeCursor (per-type-cursor): events of all kinds are in one order, and the place of any
// event is a cursor for all kinds.
func TestPerTypeCursor(t *testing.T) {
	t.Parallel()
	w, n := newNode(t)
	convo := w.convo(t, bob)
	w.welcome(t, convo, alice)
	w.must(t, convo, alice, outbox.Joined)
	w.say(t, convo, bob, 1)
	w.signal(t, alice)
	w.welcome(t, convo, bob)
	w.say(t, convo, alice, 1)
	w.must(t, convo, alice, outbox.Removed)
	w.signal(t, alice)
	w.say(t, convo, bob, 1)
	w.welcome(t, convo, alice)
	n.publish(t)
	all := []string{"kind 5 of alice", "alice joined", "1", "kind 6 of alice", "2", "alice removed", "kind 6 of alice",
		"kind 5 of alice"}
	s := n.subscribe(t, alice, 0)
	var cursors []int64
	for range all {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cursors = append(cursors, e.StreamSeq)
	}
	for cursor := int64(1); cursor <= cursors[len(cursors)-1]; cursor++ {
		first, _ := slices.BinarySearch(cursors, cursor)
		s := n.subscribe(t, alice, cursor)
		want(t, next(t, s, len(all)-first), all[first:]...)
		nothing(t, s)
		s.Close()
		if cursor%2 == 0 {
			n.hub.Forget(t, 1)
		}
	}
}

// TestOneLeaderLost (one-leader-lost): what the clients of one node write reaches the subscribers
// of another node after the leader has stopped in the middle of its work.
func TestOneLeaderLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	convo := w.convo(t, alice)
	first, second := w.node(t), w.node(t)
	first.round(t)
	stop := first.run(t)
	s := second.subscribeSoon(t, alice)
	if second.round(t); second.seq.Leads() {
		t.Error("the second node leads beside the first")
	}
	second.run(t)
	want(t, next(t, s, 1), "alice joined")
	for i := 1; i <= 20; i++ {
		w.say(t, convo, alice, 1)
		if i == 10 {
			stop()
		}
	}
	for i := 1; i <= 20; i++ {
		want(t, next(t, s, 1), fmt.Sprint(i))
	}
}
