package events_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/internal/failpoint"
)

// want asks for a number of sequencers, as an operator does.
func (w *world) want(t testing.TB, number int) error {
	t.Helper()
	conn, err := w.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	return events.WantSequencers(t.Context(), conn.Conn(), number)
}

// change makes the node's sequencer 0 change the number of sequencers, and the others lead.
func (n *node) change(t testing.TB, w *world, number int) {
	t.Helper()
	if err := w.want(t, number); err != nil {
		t.Fatal(err)
	}
	n.seq.AskNow()
	n.round(t, n.seq)
	if got, _, err := events.Sequencers(t.Context(), w.db); err != nil || got != number {
		t.Fatalf("there are %d sequencers, %v; want %d", got, err, number)
	}
}

// round does one round of a sequencer, after which it leads if it can.
func (n *node) round(t testing.TB, s *events.Sequencer) (moved bool) {
	t.Helper()
	s.TryNow()
	moved, err := s.Round(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return moved
}

// publishAll does rounds of all sequencers of the node, and of its hub, until all is handed out.
func (n *node) publishAll(t testing.TB) {
	t.Helper()
	for moved := true; moved; {
		moved = false
		for _, s := range append([]*events.Sequencer{n.seq}, n.seq.Others()...) {
			moved = n.round(t, s) || moved
		}
	}
	for more := true; more; {
		var err error
		if more, err = n.hub.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// several returns a node that leads all of this number of sequencers. Its faults are armed by the
// test.
func (w *world) several(t testing.TB, number int) (*node, *failpoint.Set) {
	t.Helper()
	n, faults := w.node(t), failpoint.New()
	n.seq = events.NewSequencer(events.SequencerConfig{
		DB: w.db, Log: slog.New(slog.DiscardHandler), Metrics: n.counts, Retention: 7 * 24 * time.Hour, Moved: n.hub.Grown, Faults: faults,
	})
	n.seq.Settle(0)
	for _, s := range append([]*events.Sequencer{n.seq}, n.seq.Others()...) {
		t.Cleanup(s.Resign)
	}
	n.publishAll(t)
	n.change(t, w, number)
	n.publishAll(t)
	return n, faults
}

// convoOf makes a convo whose rows a sequencer moves.
func (w *world) convoOf(t testing.TB, number, of int, people ...syntax.DID) uuid.UUID {
	t.Helper()
	for {
		convo := w.convo(t, people...)
		var its int
		if err := w.db.QueryRow(t.Context(), `SELECT outbox_sequencer($1, NULL, $2)`, convo, of).Scan(&its); err != nil {
			t.Fatal(err)
		}
		if its == number {
			return convo
		}
	}
}

// reader reads the events of a person on nodes that it changes, from cursors of both forms, and
// checks that each event comes once and in its order.
type reader struct {
	t      *testing.T
	rng    *rand.Rand
	did    syntax.DID
	cursor events.Cursor
	last   int64 // the newest event's place
	seen   int
	seqs   map[uuid.UUID]int64
}

func newReader(t *testing.T, did syntax.DID, seed uint64) *reader {
	return &reader{t: t, rng: rand.New(rand.NewPCG(1, seed)), did: did, cursor: events.From(0), seqs: map[uuid.UUID]int64{}}
}

// read reads until it has seen total events.
func (r *reader) read(ctx context.Context, total int, nodes ...*node) {
	for r.seen < total && !r.t.Failed() {
		s, err := nodes[r.rng.IntN(len(nodes))].hub.Subscribe(ctx, events.Request{DID: r.did, Cursor: &r.cursor})
		if errors.Is(err, events.ErrClosing) {
			continue
		}
		if err != nil {
			r.t.Errorf("%d of %d events: %v", r.seen, total, err)
			return
		}
		if s.Outdated {
			r.t.Errorf("the cursor %v is outdated", r.cursor)
		}
		for range min(1+r.rng.IntN(300), total-r.seen) {
			e, err := s.Next(ctx)
			if errors.Is(err, events.ErrClosing) {
				break
			}
			if err != nil {
				r.t.Errorf("%d of %d events: %v", r.seen, total, err)
				return
			}
			r.got(e)
		}
		s.Close()
	}
}

// got checks an event, and changes the cursor to one of its cursors.
func (r *reader) got(e *events.Event) {
	if e.StreamSeq <= r.last {
		r.t.Errorf("event %d came after event %d", e.StreamSeq, r.last)
	}
	if e.Kind.LogEntry() {
		if e.Seq != r.seqs[e.ConvoID]+1 {
			r.t.Errorf("convo %s: %d after %d", e.ConvoID, e.Seq, r.seqs[e.ConvoID])
		}
		r.seqs[e.ConvoID] = e.Seq
	}
	r.seen, r.last = r.seen+1, e.StreamSeq
	r.cursor = events.After(e.Number())
	if r.rng.IntN(2) == 0 {
		var err error
		if r.cursor, err = events.ParseCursor(e.Position()); err != nil {
			r.t.Error(err)
		}
	}
}

// TestSequencersChangeLive: the number of sequencers changes from 1 to 4 and back, over and over,
// while sixteen writers write, leaders lose their sessions, and readers come and go on two nodes.
// Every event comes to each of them once, in the order of its convo.
func TestSequencersChangeLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const writers, each, convos, changes = 16, 50, 12, 4
	one, two := w.node(t), w.node(t)
	one.run(t)
	two.run(t)
	ids := make([]uuid.UUID, convos)
	for i := range ids {
		ids[i] = w.convo(t, alice, bob)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var writing, reading sync.WaitGroup
	changed := make(chan struct{}) // each writer goes on for as long as the number still changes
	var mu sync.Mutex
	total := convos // bob's joinings are what he gets of the setup
	for i := range writers {
		writing.Go(func() {
			for k := 0; ; k++ {
				if k >= each {
					select {
					case <-changed:
						return
					case <-ctx.Done():
						return
					default:
					}
				}
				if _, err := w.send(ctx, ids[(i*each+k)%convos], alice, fmt.Sprint(i, " ", k), "hello"); err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				mu.Lock()
				total++
				mu.Unlock()
			}
		})
	}
	readers := make([]*reader, 6)
	for i := range readers {
		readers[i] = newReader(t, bob, uint64(i))
		reading.Go(func() { readers[i].read(ctx, writers*each, one, two) })
	}
	for i := range changes {
		number := 4 - 3*(i%2)
		if err := w.want(t, number); err != nil {
			t.Fatal(err)
		}
		for got := 0; got != number && ctx.Err() == nil; {
			var err error
			exec(t, w.db, `SELECT pg_sleep(0.01)`)
			if got, _, err = events.Sequencers(ctx, w.db); err != nil {
				t.Fatal(err)
			}
		}
		w.endLeaders(t)
	}
	close(changed)
	writing.Wait()
	reading.Wait()
	for _, r := range readers {
		reading.Go(func() { r.read(ctx, total, one, two) })
	}
	reading.Wait()
	var n, last int
	if err := w.db.QueryRow(t.Context(), `SELECT count(*), max(stream_seq) FROM events`).Scan(&n, &last); err != nil || n != last || n != total+convos {
		t.Errorf("%d events up to %d, %v; want %d", n, last, err, total+convos)
	}
}

// endLeaders ends the sessions of all leaders, whatever they do at that moment.
func (w *world) endLeaders(t testing.TB) {
	t.Helper()
	_, err := w.db.Exec(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND classid = $1::bigint::oid AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, 0x6d6c7364)
	if err != nil {
		t.Fatal(err)
	}
}

// TestReadersWaitForReservedPlaces: a sequencer dies after it has reserved places. Another one fills
// the places behind them. Readers of the end and of the table get nothing of these, until the next
// leader has filled the reserved places.
func TestReadersWaitForReservedPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, faults := w.several(t, 2)
	first, second := w.convoOf(t, 0, 2, alice), w.convoOf(t, 1, 2, alice)
	n.publishAll(t)
	live, place := n.subscribe(t, alice), n.hub.Head()
	nothing(t, live)

	w.say(t, first, alice, 2)
	n.dieReserving(t, n.seq, faults)
	w.say(t, second, alice, 1)
	if !n.round(t, n.seq.Others()[0]) {
		t.Fatal("sequencer 1 has moved nothing")
	}
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothing(t, live)
	late := w.node(t)
	if _, err := late.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	behind := late.subscribe(t, alice, place+1)
	nothing(t, behind)

	m := w.node(t) // leads now
	m.round(t, m.seq)
	for _, n := range []*node{n, late} {
		if _, err := n.hub.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*events.Subscription{live, behind} {
		want(t, next(t, s, 3), "1", "2", "1")
		nothing(t, s)
	}
}

// dieReserving makes a sequencer die between its two transactions.
func (n *node) dieReserving(t testing.TB, s *events.Sequencer, faults *failpoint.Set) {
	t.Helper()
	if err := faults.Arm(failpoint.BeforeCommit, events.NSIDSequencer, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Round(t.Context()); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatalf("got %v", err)
	}
	s.Resign()
}

// TestOrderOverChange: rows of a convo wait while the number of sequencers changes, and later rows
// are another sequencer's. It moves none of these before the older ones are moved.
func TestOrderOverChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, faults := w.several(t, 1)
	convo := w.convoOf(t, 3, 4, alice)
	n.publishAll(t)
	s := n.subscribe(t, alice)
	nothing(t, s)
	w.say(t, convo, alice, 3)
	if err := w.want(t, 4); err != nil {
		t.Fatal(err)
	}
	n.seq.AskNow()
	n.dieReserving(t, n.seq, faults) // it has changed the number, and moved nothing
	w.say(t, convo, alice, 2)
	third := n.seq.Others()[2]
	if n.round(t, third) || !third.Leads() {
		t.Errorf("sequencer 3 moves rows before sequencer 0 has moved the older ones; it leads: %v", third.Leads())
	}
	if !n.round(t, n.seq) || !n.round(t, third) {
		t.Error("there is nothing to move")
	}
	n.publishAll(t)
	want(t, next(t, s, 5), "1", "2", "3", "4", "5")
}

// TestChangeWaitsForPlaces: the number of sequencers does not change while places are reserved, whose
// sequencer possibly would not exist any more.
func TestChangeWaitsForPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, faults := w.several(t, 2)
	convo := w.convoOf(t, 1, 2, alice)
	n.publishAll(t)
	s := n.subscribe(t, alice)
	w.say(t, convo, alice, 1)
	second := n.seq.Others()[0]
	n.dieReserving(t, second, faults)
	if err := w.want(t, 1); err != nil {
		t.Fatal(err)
	}
	n.seq.FillWithin(20 * time.Millisecond)
	n.seq.AskNow()
	n.round(t, n.seq)
	if number, _, err := events.Sequencers(t.Context(), w.db); err != nil || number != 2 {
		t.Fatalf("there are %d sequencers, %v", number, err)
	}
	n.publishAll(t)
	n.change(t, w, 1)
	w.say(t, convo, alice, 1)
	n.publishAll(t)
	want(t, next(t, s, 2), "1", "2")
}

// TestSequencerNoticesChange: the leader of a sequencer that the stream no longer has reserves
// nothing, and gives up the lead.
func TestSequencerNoticesChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.several(t, 2)
	m := w.node(t)
	second := m.seq.Others()[0]
	t.Cleanup(second.Resign)
	n.seq.Others()[0].Resign()
	m.round(t, m.seq) // learns that there are two
	m.round(t, second)
	if !second.Leads() {
		t.Fatal("sequencer 1 has no leader")
	}
	convo := w.convoOf(t, 1, 2, alice)
	n.publishAll(t)
	m.publishAll(t)
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := n.subscribe(t, alice)
	n.change(t, w, 1)
	w.say(t, convo, alice, 1)
	if m.round(t, second) || second.Leads() {
		t.Error("sequencer 1 goes on, and there is no sequencer 1")
	}
	n.publishAll(t)
	want(t, next(t, s, 1), "1")
}

// TestGenerationWithReservedPlaces: a generation begins while places are reserved. What fills them
// is of the new generation, and so is all behind them. So a reader that has got one of these places
// from the lost database learns that it possibly has lost events.
func TestGenerationWithReservedPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, faults := w.several(t, 2)
	first, second := w.convoOf(t, 0, 2, alice), w.convoOf(t, 1, 2, alice)
	n.publishAll(t)
	place := n.hub.Head()
	old := ends(t, n.subscribe(t, alice, place), 1)
	w.say(t, first, alice, 2)
	n.dieReserving(t, n.seq, faults)
	w.say(t, second, alice, 1)
	n.round(t, n.seq.Others()[0])
	conn, err := w.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, after, err := events.Restored(t.Context(), conn.Conn()); err != nil || after != place {
		t.Errorf("the generation begins after %d, %v; want %d", after, err, place)
	}
	n.publishAll(t)
	n.publishAll(t)
	for _, cursor := range []string{old.number, old.position} {
		s := n.resume(t, cursor)
		if s.Outdated {
			t.Errorf("the cursor %s is outdated", cursor)
		}
		want(t, next(t, s, 3), "1", "2", "1")
	}
	if s := n.subscribeTo(t, events.Request{DID: alice, Cursor: &events.Cursor{Generation: 0, Seq: place + 3}}); !s.Outdated {
		t.Error("the cursor of an event of the lost database is not outdated")
	}
}

// TestOldNodesForbidSequencers: while a node of a version that knows one sequencer is live, there
// are no more.
func TestOldNodesForbidSequencers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	n.publish(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO nodes (id, synced_at, lease_expires_at, schema_version) VALUES (gen_random_uuid(), now(), now() + interval '1 hour', 28)`)
	if err := w.want(t, 2); err == nil || !strings.Contains(err.Error(), "older version") {
		t.Errorf("got %v", err)
	}
	exec(`UPDATE stream SET wanted_sequencers = 2`) // it has started since the operator asked
	n.seq.AskNow()
	n.round(t, n.seq)
	if number, _, err := events.Sequencers(t.Context(), w.db); err != nil || number != 1 {
		t.Errorf("there are %d sequencers, %v", number, err)
	}
	exec(`DELETE FROM nodes`)
	n.seq.Settle(time.Hour) // a crash of the database empties the table too
	n.seq.AskNow()
	n.round(t, n.seq)
	if number, _, err := events.Sequencers(t.Context(), w.db); err != nil || number != 1 {
		t.Errorf("there are %d sequencers, %v, and a node is possibly not recorded yet", number, err)
	}
	n.seq.Settle(0)
	n.change(t, w, 2)
	var oldest int
	if err := w.db.QueryRow(t.Context(), `SELECT coalesce(max(min_binary), 0) FROM schema_support WHERE version = 29`).Scan(&oldest); err != nil || oldest != 29 {
		t.Errorf("a node must know migration %d, %v", oldest, err)
	}
	n.change(t, w, 1)
	if err := w.db.QueryRow(t.Context(), `SELECT coalesce(max(min_binary), 0) FROM schema_support WHERE version = 29`).Scan(&oldest); err != nil || oldest >= 29 {
		t.Errorf("a node must know migration %d, %v", oldest, err)
	}
	for _, number := range []int{0, 17} {
		if w.want(t, number) == nil {
			t.Errorf("%d sequencers are possible", number)
		}
	}
}

// TestFloorOfSeveral: the floor stays below rows that wait for another sequencer.
func TestFloorOfSeveral(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.several(t, 2)
	first, second := w.convoOf(t, 0, 2, alice), w.convoOf(t, 1, 2, alice)
	n.publishAll(t)
	s := n.subscribe(t, alice)
	w.say(t, second, alice, 1)
	var waiting int64
	if err := w.db.QueryRow(t.Context(), `SELECT max(id) FROM outbox`).Scan(&waiting); err != nil {
		t.Fatal(err)
	}
	w.say(t, first, alice, 1)
	if floor := n.seekFloor(t); floor >= waiting {
		t.Errorf("the floor is %d, and row %d waits", floor, waiting)
	}
	n.publishAll(t)
	if floor := n.seekFloor(t); floor < waiting {
		t.Errorf("the floor is %d, and row %d has been moved", floor, waiting)
	}
	want(t, next(t, s, 2), "1", "1")
}

// TestSequencersSpread: a node that has led too many for long gives them up, one at a time, to a
// node that leads none.
func TestSequencersSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n, _ := w.several(t, 4)
	m := w.node(t)
	for _, s := range m.seq.Others() {
		t.Cleanup(s.Resign)
	}
	for range 2 {
		if _, err := w.db.Exec(t.Context(), `
			INSERT INTO nodes (id, synced_at, lease_expires_at, schema_version) VALUES (gen_random_uuid(), now(), now() + interval '1 hour', 29)`); err != nil {
			t.Fatal(err)
		}
	}
	leads := func(n *node) (leads []int) {
		for i, s := range append([]*events.Sequencer{n.seq}, n.seq.Others()...) {
			if s.Leads() {
				leads = append(leads, i)
			}
		}
		return leads
	}
	// A sequencer is free once PostgreSQL has ended the session that led it.
	for began := time.Now(); len(leads(m)) < 2 && time.Since(began) < patience; {
		n.seq.LedTooLong()
		n.round(t, n.seq)
		for _, s := range n.seq.Others()[:3] {
			if _, err := s.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		m.round(t, m.seq)
		for _, s := range m.seq.Others()[:3] {
			m.round(t, s)
		}
	}
	if got := fmt.Sprint(leads(n), leads(m)); got != "[0 1] [2 3]" {
		t.Errorf("they lead %s", got)
	}
}
