package attachments_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/attachments"
	"mlsd/features/attachments/storetest"
	"mlsd/internal/pgtest"
)

const convo = "10000000-0000-0000-0000-000000000000"

// world is a database with one convo, a store, and their sweeper.
type world struct {
	t       *testing.T
	db      *pgxpool.Pool
	store   *storetest.Memory
	sweeper *attachments.Sweeper
	prefix  string // of the names of objects
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t), store: storetest.NewMemory()}
	log := slog.New(slog.DiscardHandler)
	service := attachments.New(attachments.Config{DB: w.db, Store: w.store, ServiceDID: "did:web:mlsd.example.com",
		Log: log})
	w.sweeper = attachments.NewSweeper(w.db, service, log)
	w.exec(`
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at)
		VALUES ($1, 'g', 'did:plc:alice', 1, 1, now())`, convo)
	if err := w.db.QueryRow(t.Context(), `SELECT id::text || '/' FROM installation`).Scan(&w.prefix); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) count(sql string) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(w.t.Context(), sql).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// add adds attachments of one part in a state and with an age, and their objects.
func (w *world) add(n int, state string, age time.Duration) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `
		WITH a AS (
			INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size, state, touched_at, seq, kept_from)
			SELECT gen_random_uuid(), $2, 'did:plc:alice', 1, sha256(gen_random_uuid()::text::bytea), 1, $3, now() -
				$4::interval, 1, now() - $4::interval
			FROM generate_series(1, $1) RETURNING id
		)
		INSERT INTO attachment_parts (attachment_id, part, object, sha256) SELECT id, 1, $5 || id || '/1-x', sha256('x') FROM
			a RETURNING object`,
		n, convo, state, age, w.prefix)
	if err != nil {
		w.t.Fatal(err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, object := range objects {
		w.store.Add(object, time.Now())
	}
}

func (w *world) sweep() {
	w.t.Helper()
	pgtest.Sweep(w.t, attachments.Sweeps(w.db, 48*time.Hour)...)
	if err := w.sweeper.RunOnce(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// left fails the test unless as many attachments are not deleted, and as many objects are there.
func (w *world) left(live, objects int) {
	w.t.Helper()
	if n := w.count(`SELECT count(*) FROM attachments WHERE state <> 'deleted'`); n != live {
		w.t.Errorf("%d attachments are left, want %d", n, live)
	}
	if n := len(w.store.Names()); n != objects {
		w.t.Errorf("%d objects are left, want %d", n, objects)
	}
}

// G14: an older copy of the database's files was put back. The store's claim knows how far the WAL was,
// and the log says once what to do. A restart, a failover, and a claim without the WAL are no evidence.
func TestClaimShowsALostWAL(t *testing.T) {
	t.Parallel()
	const wal, timeline, started = 6, 5, 2 // fields of the claim
	for name, tc := range map[string]struct {
		change func(fields []string) []string
		lines  int
	}{
		"the WAL is shorter": {func(f []string) []string { f[wal] += "0"; return f }, 1},
		"a restart":          {func(f []string) []string { return f }, 0},
		"a failover":         {func(f []string) []string { f[wal] += "0"; f[timeline] += "0"; return f }, 0},
		"an old claim":       {func(f []string) []string { return f[:timeline] }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.sweep()
			object := "databases/" + strings.TrimSuffix(w.prefix, "/")
			body, err := w.store.Open(t.Context(), object, 0, 4096)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(body)
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Fields(string(text))
			fields[started] = "1" // before the restart
			claim := strings.Join(tc.change(fields), " ")
			if err := w.store.Put(t.Context(), object, strings.NewReader(claim), int64(len(claim))); err != nil {
				t.Fatal(err)
			}
			var lines bytes.Buffer
			log := slog.New(slog.NewTextHandler(&lines, nil))
			service := attachments.New(attachments.Config{DB: w.db, Store: w.store, ServiceDID: "did:web:mlsd.example.com",
				Log: log})
			w.sweeper = attachments.NewSweeper(w.db, service, log)
			for range 2 {
				w.sweep()
			}
			if got := strings.Count(lines.String(), "level=WARN"); got != tc.lines ||
				strings.Count(lines.String(), "run mlsd restored") != tc.lines {
				t.Errorf("%d lines, want %d: %s", got, tc.lines, lines.String())
			}
		})
	}
}

// One round ends and deletes all that is due, not one batch of each kind.
func TestSweepDeletesAllAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(1200, "uploading", 25*time.Hour)
	w.add(1200, "complete", 50*time.Hour)
	w.add(3, "complete", time.Hour)
	w.sweep()
	w.left(3, 3)
	if n := w.count(`SELECT count(*) FROM attachments`); n != 3 {
		t.Errorf("%d rows are left", n)
	}
}

// Objects are deleted some at a time.
func TestSweepDeletesInParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(3*attachments.Deletions, "deleted", time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	begun, all := 0, make(chan struct{})
	w.store.Stop = func(call, _ string) {
		if call != "delete" {
			return
		}
		mu.Lock()
		if begun++; begun == attachments.Deletions {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-ctx.Done():
			t.Error("the deletions wait for each other")
		}
	}
	w.sweep()
	w.left(0, 0)
}

// The orphans have time of their own, whatever the deletions take.
func TestSweepHasTimeForOrphans(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(1, "deleted", time.Hour)
	w.store.Add(w.prefix+"0192f3a4-5b6c-7d8e-9f01-23456789abcd/1-orphan", time.Now().Add(-25*time.Hour))
	w.sweeper.NoTimeToClear()
	w.sweep()
	if left := w.store.Names(); len(left) != 1 || strings.HasSuffix(left[0], "orphan") {
		t.Errorf("left are %q, want the deleted attachment's", left)
	}
}

// The deletion of a convo's attachments finds them by their index.
func TestPlanOfConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`
		INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size)
		SELECT gen_random_uuid(), gen_random_uuid(), 'did:plc:alice', 1, sha256('x'), 1 FROM generate_series(1, 20000)`)
	w.exec(`ANALYZE attachments`)
	rows, err := w.db.Query(t.Context(), "EXPLAIN "+attachments.PurgeSQL, convo, 1000)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(plan, "\n")
	if !strings.Contains(text, "using attachments_convo ") || strings.Contains(text, "Seq Scan on attachments") {
		t.Error(text)
	}
}
