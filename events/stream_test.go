package events_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/outbox"
)

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

// TestEverythingInOrder: what happens in a convo comes to its members in its order, with what was sent, and to nobody else.
func TestEverythingInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	a, b, m := n.subscribe(t, alice), n.subscribe(t, bob), n.subscribe(t, mallory)
	convo := w.convo(t, alice, bob)
	w.say(t, convo, alice, 2)
	w.must(t, convo, bob, outbox.Left)
	w.say(t, convo, alice, 1)
	n.settle(t)
	want(t, next(t, a, 6), "alice joined", "bob joined", "1", "2", "bob left", "3")
	want(t, next(t, b, 4), "bob joined", "1", "2", "bob left")
	nothing(t, a)
	nothing(t, b)
	nothing(t, m)
}

// TestLateConvo (late-convo): a convo that somebody joins after connecting is told of from there on.
func TestLateConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	n.settle(t)
	s := n.subscribe(t, bob)
	nothing(t, s) // and so it is live
	w.say(t, convo, alice, 1)
	w.must(t, convo, bob, outbox.Joined)
	w.say(t, convo, alice, 1)
	n.settle(t)
	want(t, next(t, s, 2), "bob joined", "2")
	nothing(t, s)
}

// TestRemovedStillStreams (removed-still-streams): whoever is removed gets its removal and nothing after it, whether it listens live
// or asks for all of it later; coming back it is told of what comes then.
func TestRemovedStillStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice, bob, carol)
	n.settle(t)
	live := n.subscribe(t, bob)
	nothing(t, live)
	w.say(t, convo, alice, 1)
	w.must(t, convo, bob, outbox.Removed)
	w.must(t, convo, carol, outbox.Left) // without an entry in the log between
	w.say(t, convo, alice, 1)
	n.settle(t)
	told := []string{"1", "bob removed"}
	want(t, next(t, live, 2), told...)
	nothing(t, live)
	before := []string{"alice joined", "bob joined", "carol joined"}
	before = before[1:] // its own joining is where it begins
	want(t, next(t, n.subscribe(t, bob, 0), 4), append(before, told...)...)

	w.must(t, convo, bob, outbox.Joined)
	w.say(t, convo, alice, 1)
	n.settle(t)
	want(t, next(t, live, 2), "bob joined", "3")
	again := n.subscribe(t, bob, 0)
	want(t, next(t, again, 6), append(append(before, told...), "bob joined", "3")...)
	nothing(t, again)
}

// TestLateMembership: what the roster says when somebody connects is not what it said where its cursor is, and what has changed may
// not even have its place in the stream yet.
func TestLateMembership(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice, bob)
	n.settle(t)
	w.must(t, convo, bob, outbox.Left)
	w.must(t, convo, carol, outbox.Joined)
	leaving, joining := n.subscribe(t, bob), n.subscribe(t, carol)
	nothing(t, leaving) // they are live before the hub has heard of it
	nothing(t, joining)
	w.say(t, convo, alice, 1)
	n.settle(t)
	want(t, next(t, leaving, 1), "bob left")
	want(t, next(t, joining, 2), "carol joined", "1")
	nothing(t, leaving)
}

// TestFilter: a subscription to some convos is told of those.
func TestFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	one, two := w.convo(t, alice), w.convo(t, alice)
	for _, cursor := range []*int64{nil, new(int64)} {
		s := n.subscribeTo(t, events.Request{DID: alice, Convos: []uuid.UUID{two, uuid.New()}, Cursor: cursor})
		if cursor == nil {
			nothing(t, s)
		}
		w.say(t, one, alice, 1)
		w.say(t, two, alice, 1)
		n.settle(t)
		got := next(t, s, 1)
		if cursor != nil {
			got = append(got, next(t, s, 2)...)
		}
		nothing(t, s)
		if cursor == nil {
			want(t, got, "alice joined") // it had not been handed out yet
			continue
		}
		want(t, got, "alice joined", "1", "2")
	}
}

// TestCursor: a cursor is the first event that comes; ahead of the stream and older than it are told apart.
func TestCursor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 4)
	n.settle(t)
	want(t, next(t, n.subscribe(t, alice, 4), 2), "3", "4")
	want(t, next(t, n.subscribe(t, alice, 0), 5), "alice joined", "1", "2", "3", "4")
	end := n.subscribe(t, alice, 6)
	nothing(t, end)
	if end.Outdated {
		t.Error("the end of the stream is outdated")
	}
	ahead := int64(7)
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: alice, Cursor: &ahead}); !errors.Is(err, events.ErrFutureCursor) {
		t.Errorf("ahead of the stream: %v", err)
	}
	other := w.node(t) // which has not read the end of the stream
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

// TestRetention: events go by the day, when they are old enough; the newest one stays, and a cursor from before what is kept is told
// to be outdated.
func TestRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice) // event 1
	n.settle(t)
	for day := 1; day <= 9; day++ { // events 2 to 10
		n.seq.Ahead(time.Duration(day) * 24 * time.Hour)
		w.say(t, convo, alice, 1)
		n.settle(t)
	}
	s := n.subscribe(t, alice, 1)
	if !s.Outdated {
		t.Error("a cursor from before what is kept is not outdated")
	}
	want(t, next(t, s, 8), "2", "3", "4", "5", "6", "7", "8", "9") // of the seven days before today, and today's
	if s := n.subscribe(t, alice, 3); s.Outdated {
		t.Error("a cursor at the oldest event is outdated")
	}
	if s := n.subscribe(t, alice, 0); s.Outdated {
		t.Error("all that is kept is outdated")
	}
	n.seq.Ahead(100 * 24 * time.Hour)
	n.settle(t)
	kept := n.subscribe(t, alice, 10)
	if kept.Outdated {
		t.Error("the newest event was dropped")
	}
	want(t, next(t, kept, 1), "9")
	n.seq.Ahead(0) // the clock goes back: days do not
	w.say(t, convo, alice, 1)
	n.settle(t)
	want(t, next(t, kept, 1), "10")
}

// TestBigserialGap (bigserial-gap): a transaction that took its number early and commits late is neither skipped nor waited for.
func TestBigserialGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	early, late := w.convo(t, alice), w.convo(t, bob)
	n.settle(t)
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
		), noted AS (
			SELECT $1::uuid AS convo_id, 1 AS seq, 1 AS kind, 2 AS size, now() AS created_at
		)`+outbox.NoteMessages, early, messageOf(early))
	if err != nil {
		t.Fatal(err)
	}
	w.say(t, late, bob, 3)
	n.settle(t)
	want(t, next(t, b, 3), "1", "2", "3")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.settle(t)
	want(t, next(t, a, 1), "1")
}

// TestSixteenWriters: what sixteen writers commit at once stands in the stream once, with no gap, each convo's in its order; readers
// that come and go at random on two nodes miss nothing and get nothing twice.
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
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
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
	const total = writers*each + convos // its own joinings, which are the last
	for r := range 6 {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(r)))
			seen, seqs, cursor := 0, map[uuid.UUID]int64{}, int64(0)
			for seen < total {
				n := one
				if rng.IntN(2) == 0 {
					n = two
				}
				s, err := n.hub.Subscribe(ctx, events.Request{DID: bob, Cursor: &cursor})
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + rng.IntN(300) {
					if seen == total {
						break
					}
					e, err := s.Next(ctx)
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
	if err := w.db.QueryRow(t.Context(), `SELECT count(*), max(stream_seq) FROM events`).Scan(&n, &last); err != nil || n != last || n != writers*each+2*convos {
		t.Errorf("%d events up to %d, %v", n, last, err)
	}
}

// TestCatchupFillsLive (catchup-fills-live): much more than a buffer holds is caught up with while more is being written.
func TestCatchupFillsLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 4000 })
	n.settle(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 450)
	n.settle(t)
	s := n.subscribe(t, alice, 0)
	want(t, next(t, s, 2), "alice joined", "1")
	w.say(t, convo, alice, 50) // while it is behind
	n.settle(t)
	for i := 2; i <= 500; i++ {
		want(t, next(t, s, 1), fmt.Sprint(i))
	}
	nothing(t, s)
	if n.behind > 0 && n.pages < 3 {
		t.Errorf("its buffer was full %d times, and it read %d pages", n.behind, n.pages)
	}
}

// TestLagDropped (lag-dropped): a reader whose buffer is full loses nothing: it reads on by itself, and goes live again.
func TestLagDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer = 4000 })
	n.settle(t)
	convo := w.convo(t, alice, bob)
	n.settle(t)
	slow, other := n.subscribe(t, alice), n.subscribe(t, bob)
	nothing(t, slow)
	nothing(t, other)
	for i := 1; i <= 50; i++ {
		w.say(t, convo, alice, 1)
		n.settle(t)
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

// TestPatience: a reader that stays behind is told so.
func TestPatience(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t, func(c *events.HubConfig) { c.Buffer, c.Patience = 4000, time.Nanosecond })
	n.settle(t)
	convo := w.convo(t, alice)
	n.settle(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	w.say(t, convo, alice, 50)
	n.settle(t)
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

// TestHubForgets: whoever is further behind than the hub remembers reads the table until it has caught up.
func TestHubForgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice)
	n.settle(t)
	s := n.subscribe(t, alice)
	w.say(t, convo, alice, 3)
	n.settle(t)
	n.hub.Forget()
	want(t, next(t, s, 3), "1", "2", "3")
	nothing(t, s)
}

// TestLimits: one DID has only so many subscriptions, and a closed hub has none.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
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

// TestOneLeader: of many nodes one leads; when its session ends another does at once, and nothing is moved twice or left.
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
		reader.settle(t)
		return reader.subscribe(t, alice, 0)
	}()
	next(t, s, 19)
	nothing(t, s)
}

// TestFrozenLeader: a leader that has stopped with its session open is deposed, and does no harm when it goes on.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	frozen, other := w.node(t), w.node(t)
	frozen.settle(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 1)
	deadline := time.Now().Add(20 * time.Second)
	for !other.seq.Leads() {
		other.seq.TryNow()
		if _, err := other.seq.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody leads")
		}
	}
	if _, err := frozen.seq.Round(t.Context()); err == nil {
		t.Fatal("the deposed leader went on")
	}
	frozen.seq.Resign()
	other.settle(t)
	want(t, next(t, other.subscribe(t, alice, 0), 2), "alice joined", "1")
}

// TestWakes: what one node's clients write comes to another node's subscribers without waiting for a poll, whichever of them leads.
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

// TestLostConnections: the sessions of all nodes are ended again and again, and subscribers miss nothing.
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
				// Whoever writes in this moment tries again.
				_, _ = w.db.Exec(t.Context(), `
					SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
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

// TestShared: subscribers of one convo share what an event is encoded to.
func TestShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
	convo := w.convo(t, alice, bob)
	n.settle(t)
	subs := []*events.Subscription{n.subscribe(t, alice), n.subscribe(t, bob)}
	for _, s := range subs {
		nothing(t, s)
	}
	w.say(t, convo, alice, 1)
	n.settle(t)
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

// TestEntitlement compares what members that come and go are told with a model of it, live and from the beginning, whatever the hub
// knows.
func TestEntitlement(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.node(t, func(c *events.HubConfig) { c.Buffer = 3000 })
			n.settle(t)
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
					n.settle(t)
				case 2:
					if rng.IntN(4) == 0 {
						n.hub.Forget()
					}
				default:
					w.say(t, convo, mallory, 1)
					seqs[convo]++
					for _, q := range people {
						if in[convo.String()+q.String()] {
							model[q] = append(model[q], fmt.Sprint(seqs[convo]))
						}
					}
				}
			}
			n.settle(t)
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

// TestPerTypeCursor (per-type-cursor): events of all kinds stand in one order, and any of them is a cursor for all.
func TestPerTypeCursor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.settle(t)
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
	n.settle(t)
	all := []string{"kind 5 of alice", "alice joined", "1", "kind 6 of alice", "2", "alice removed", "kind 6 of alice", "kind 5 of alice"}
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
			n.hub.Forget()
		}
	}
}

// TestOneLeaderLost (one-leader-lost): what one node's clients write reaches another node's subscribers after the leader has died in
// the middle of its work.
func TestOneLeaderLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	convo := w.convo(t, alice)
	first, second := w.node(t), w.node(t)
	stop := first.run(t)
	s := second.subscribeSoon(t, alice)
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
