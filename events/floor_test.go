package events_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
)

// seekFloor does rounds in which the leader has time to raise the floor.
func (n *node) seekFloor(t testing.TB) (floor int64) {
	t.Helper()
	for range 4 {
		n.seq.SeekFloorNow()
		if _, err := n.seq.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return n.seq.Floor()
}

// E4: a row with a low id that is committed late gets its place, also if the floor was sought
// meanwhile, many times. That is so for a transaction that has a row, and for one that has an id
// and nothing else, not even an id of its own.
func TestFloorWaitsForLowIDs(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{
		"a row": `INSERT INTO outbox (kind, did, created_at, detail) VALUES (6, 'did:plc:alice', now(), '{}') RETURNING id`,
		"an id": `SELECT nextval('outbox_id_seq')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, n := newNode(t)
			convo := w.convo(t, alice)
			first := n.seekFloor(t)
			if first == 0 {
				t.Fatal("the floor is not raised")
			}
			late, err := w.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
			// What an INSERT does before it asks for an id.
			if _, err := late.Exec(t.Context(), `LOCK TABLE outbox IN ROW EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			var low int64
			if err := late.QueryRow(t.Context(), begin).Scan(&low); err != nil {
				t.Fatal(err)
			}
			w.say(t, convo, alice, 50)
			for range 5 {
				if floor := n.seekFloor(t); floor >= low {
					t.Fatalf("the floor is %d, and %d is not committed", floor, low)
				}
			}
			if name != "a row" {
				_, err = late.Exec(t.Context(), `
					INSERT INTO outbox (id, kind, did, created_at, detail) OVERRIDING SYSTEM VALUE VALUES ($1, 6, 'did:plc:alice',
						now(), '{}')`, low)
			}
			if err == nil {
				err = late.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			n.publish(t)
			if floor := n.seekFloor(t); floor < low+50 {
				t.Errorf("the floor is %d, and all rows up to %d are moved", floor, low+50)
			}
			s := n.subscribe(t, alice, 0)
			got := next(t, s, 52)
			if got[51] != "kind 6 of alice" {
				t.Errorf("the last event is %s", got[51])
			}
			nothing(t, s)
		})
	}
}

// E4: while a snapshot is open, a step does not read the rows that were moved before.
func TestStepReadsNoMovedRows(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 0, alice)
	defer openSnapshot(t, w)()
	fillOutbox(t, w, 3000)
	n.publish(t)
	n.seekFloor(t)
	read := func() (entries int64) {
		t.Helper()
		if _, err := n.seq.Conn().Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		err := n.seq.Conn().QueryRow(t.Context(),
			`SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_pkey'`).Scan(&entries)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	w.say(t, convo, alice, 1)
	before := read()
	n.publish(t)
	if entries := read() - before; entries > 20 {
		t.Errorf("a step that moves one event reads %d entries of the index", entries)
	}
	// A new leader begins where the old one was.
	m := w.node(t)
	n.seq.Resign()
	if _, err := m.seq.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.seq.Floor() != n.seq.Floor() || m.seq.Floor() < 3000 {
		t.Errorf("the floors are %d and %d", n.seq.Floor(), m.seq.Floor())
	}
}

// openSnapshot opens a snapshot, as pg_dump does, until it is closed.
func openSnapshot(t testing.TB, w *world) (closed func()) {
	t.Helper()
	tx, err := w.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err == nil {
		_, err = tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0; SELECT FROM convos`)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
}

// fillOutbox outboxes n signals.
func fillOutbox(t testing.TB, w *world, n int) {
	t.Helper()
	_, err := w.db.Exec(t.Context(), `
		INSERT INTO outbox (kind, did, created_at, detail) SELECT 6, 'did:plc:bob', now(), '{}' FROM generate_series(1,
			$1::int)`, n)
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkStepUnderSnapshot measures a step that moves one event after 400,000 events were moved
// while a snapshot was open. Run it with -benchtime 200x.
func BenchmarkStepUnderSnapshot(b *testing.B) {
	b.Run("moved=400000 by=2000", func(b *testing.B) { stepUnderSnapshot(b, 400_000, 2000) })
	b.Run("moved=60000 by=20", func(b *testing.B) { stepUnderSnapshot(b, 60_000, 20) })
}

func stepUnderSnapshot(b *testing.B, moved, by int) {
	w := &world{db: pgtest.Database(b)}
	n := w.node(b)
	if _, err := n.seq.Round(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer openSnapshot(b, w)()
	for range moved / by {
		fillOutbox(b, w, by)
		for more := true; more; {
			var err error
			if more, err = n.seq.Round(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	for range 4 {
		n.seq.SeekFloorNow()
		if _, err := n.seq.Round(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	var took time.Duration
	for b.Loop() {
		fillOutbox(b, w, 1)
		began := time.Now()
		if _, err := n.seq.Round(b.Context()); err != nil {
			b.Fatal(err)
		}
		took += time.Since(began)
	}
	b.ReportMetric(took.Seconds()*1000/float64(b.N), "ms/step")
}
