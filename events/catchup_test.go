package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/pgtest"
)

// filled returns a node whose stream has n events of convos that alice is in, spread evenly. The
// events need no log entry.
func filled(t testing.TB, db *pgxpool.Pool, n, convos int) *node {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(c), 12, '0'))::uuid, int4send(c), 'did:plc:alice', 1, 1, now() FROM
			generate_series(1, $1::int) AS c`, convos)
	if err == nil {
		_, err = db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq) SELECT id, 'did:plc:alice', 'creator', now(), 0 FROM
				convos`)
	}
	if err == nil {
		_, err = db.Exec(t.Context(),
			`CREATE TABLE events_20261120 PARTITION OF events FOR VALUES FROM ('2026-11-20') TO ('2026-11-21')`)
	}
	for from := 0; err == nil && from < n; from += 10_000 { // each statement is short
		_, err = db.Exec(t.Context(), `
			INSERT INTO events (stream_seq, day, kind, convo_id, seq, did, size, detail, created_at)
			SELECT s, '2026-11-20', 4, ('00000000-0000-7000-8000-' || lpad(to_hex(1 + s % $3), 12, '0'))::uuid, 0, 'did:plc:' ||
				s % 5000, 0,
				'{"change": "joined"}', now()
			FROM generate_series($1::bigint + 1, least($1 + 10000, $2::bigint)) AS s`, from, n, convos)
	}
	if err == nil {
		_, err = db.Exec(t.Context(), `
			WITH head AS (UPDATE stream SET head = $1, day = '2026-11-20'), indexed AS (UPDATE convo_events_end SET last = $1)
				INSERT INTO event_days VALUES ('2026-11-20', 1)`, n)
	}
	if err == nil {
		_, err = db.Exec(t.Context(), `VACUUM ANALYZE events, convos, members`)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := (&world{db: db}).node(t)
	if _, err := m.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// E5: to catch up over many convos reads each event about once, not once for each convo.
func TestCatchUpReadsEachEventOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t, pgtest.MaxConns(1)) // one session, whose statistics are written on request
	const total = 10_000
	n := filled(t, db, total, 400)
	read := func() (rows int64) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		err := db.QueryRow(t.Context(),
			`SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE relname = 'events_20261120'`).Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := read()
	s := n.subscribe(t, alice, 0)
	for want := int64(1); want <= total; want++ {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.StreamSeq != want {
			t.Fatalf("event %d came instead of %d", e.StreamSeq, want)
		}
	}
	if rows := read() - before; rows < total || rows > 4*total {
		t.Errorf("it read %d rows for %d events", rows, total)
	}
}

// A subscriber of one quiet convo finds its events in a long stream of others' in a few pages.
func TestCatchUpOfAQuietConvo(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := filled(t, db, 40_000, 400)
	if _, err := db.Exec(t.Context(),
		`DELETE FROM members WHERE convo_id <> '00000000-0000-7000-8000-000000000001'`); err != nil {
		t.Fatal(err)
	}
	s := n.subscribe(t, alice, 0)
	if got := len(next(t, s, 100)); got != 100 {
		t.Errorf("%d events", got)
	}
	nothing(t, s)
	if n.pages > 10 {
		t.Errorf("%d pages", n.pages)
	}
}

// Events whose convo was deleted lead nowhere: a page of them costs one query and one line of the log,
// not one for each event.
func TestCatchUpOfADeletedConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	convo := w.convo(t, alice, bob)
	n := w.node(t)
	n.publish(t)
	var before int64
	if err := w.db.QueryRow(t.Context(), `SELECT head FROM stream`).Scan(&before); err != nil {
		t.Fatal(err)
	}
	w.say(t, convo, alice, 100)
	n.publish(t)
	for _, change := range []string{`DELETE FROM messages`,
		`INSERT INTO log_floors (convo_id, seq) SELECT id, last_seq FROM convos`} {
		if _, err := w.db.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	var lines bytes.Buffer
	n = w.node(t, func(c *events.HubConfig) { c.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothing(t, n.subscribe(t, bob, before+1))
	if got := strings.Count(lines.String(), "\n"); got != 1 || !strings.Contains(lines.String(), "entries=100") {
		t.Errorf("%d lines: %s", got, lines.String())
	}
}

// Of one account one subscription reads at a time: a page costs a look-up for each of its convos. Who
// waits keeps nobody else from reading.
func TestCatchUpsOfOneAccountTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.convo(t, alice, bob)
	n := w.node(t)
	n.publish(t)
	first, second, other := n.subscribe(t, alice, 0), n.subscribe(t, alice, 0), n.subscribe(t, bob, 0)
	release := n.hub.HoldTurn(alice)
	for _, s := range []*events.Subscription{first, second} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if e, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next = %v, %v while another subscription reads", e, err)
		}
	}
	if _, err := other.Next(t.Context()); err != nil {
		t.Errorf("another account: %v", err)
	}
	release()
	for _, s := range []*events.Subscription{first, second} {
		if _, err := s.Next(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkCatchUp measures events per second of a subscriber that catches up, and that none is missed,
// doubled or out of order. Run it with -benchtime 1x: it reads the whole stream, within two minutes.
func BenchmarkCatchUp(b *testing.B) {
	for _, convos := range []int{1000, 4000} {
		b.Run(fmt.Sprintf("convos=%d", convos), func(b *testing.B) {
			const total = 600_000
			n := filled(b, pgtest.Database(b), total, convos)
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
				s, err := n.hub.Subscribe(ctx, events.Request{DID: alice, Cursor: new(events.From(0))})
				if err != nil {
					b.Fatal(err)
				}
				began, got := time.Now(), 0
				for ; got < total; got++ {
					e, err := s.Next(ctx)
					if err != nil {
						b.Fatalf("after %d events: %v", got, err)
					}
					if e.StreamSeq != int64(got)+1 {
						b.Fatalf("event %d came instead of %d", e.StreamSeq, got+1)
					}
				}
				b.ReportMetric(float64(got)/time.Since(began).Seconds(), "events/s")
				s.Close()
				cancel()
			}
		})
	}
}
