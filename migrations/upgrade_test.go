package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgtest"
	"mlsd/migrations"
)

// These variables make the test binary change the schema of the database that the first names, and
// be killed at a point.
const (
	childEnv = "MLSD_TEST_MIGRATE" // URL
	pointEnv = "MLSD_TEST_MIGRATE_AT"
	stepEnv  = "MLSD_TEST_MIGRATE_STEP" // "up 24"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		fmt.Fprintln(os.Stderr, changeAsChild(url))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// changeAsChild changes the schema until it is killed.
func changeAsChild(url string) error {
	faults, step := failpoint.New(), os.Getenv(stepEnv)
	if err := faults.Arm(os.Getenv(pointEnv), step, failpoint.Kill); err != nil {
		return err
	}
	if strings.HasPrefix(step, "down") {
		return migrations.Down(context.Background(), url, 1, migrations.Faults(faults))
	}
	return migrations.Up(context.Background(), url, migrations.Faults(faults))
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// wantState expects the schema to have a version and no dirty mark.
func wantState(t *testing.T, conn *pgx.Conn, version uint) {
	t.Helper()
	s, err := migrations.Read(t.Context(), conn)
	if err != nil || s.Dirty || s.Version != version {
		t.Fatalf("the schema is %+v, %v; want version %d", s, err, version)
	}
}

// catalog returns the tables and their columns.
func catalog(t *testing.T, conn *pgx.Conn) map[string][]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
			AND c.relname <> 'schema_migrations' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	var table, column string
	if _, err := pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		found[table] = append(found[table], column)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// before returns the number of the migration before the newest.
func before(t *testing.T) uint {
	t.Helper()
	names, err := fs.Glob(os.DirFS("."), "*.up.sql")
	if err != nil || len(names) < 2 {
		t.Fatalf("%v, %v", names, err)
	}
	var n uint
	if _, err := fmt.Sscanf(names[len(names)-2], "%d_", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// X1: a process that is killed right before or right after the COMMIT of a migration leaves the old
// version or the new one, and no dirty mark.
func TestKilledAtCommit(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	newest := migrations.Newest()
	up, down := fmt.Sprintf("up %d", newest), fmt.Sprintf("down %d", newest)
	schemas := map[uint]map[string][]string{newest: catalog(t, conn)}
	for _, tc := range []struct {
		step, point string
		want        uint
	}{
		{down, failpoint.BeforeCommit, newest},
		{down, failpoint.AfterCommit, before(t)},
		{up, failpoint.BeforeCommit, before(t)},
		{up, failpoint.AfterCommit, newest},
	} {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), childEnv+"="+url, stepEnv+"="+tc.step, pointEnv+"="+tc.point)
		output, err := cmd.CombinedOutput()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if err == nil || !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("%s, %s: it was not killed: %v, %s", tc.step, tc.point, err, output)
		}
		wantState(t, conn, tc.want)
		if known, seen := schemas[tc.want]; !seen {
			schemas[tc.want] = catalog(t, conn)
		} else if diff := cmp.Diff(known, catalog(t, conn)); diff != "" {
			t.Errorf("%s, %s: the tables are not those of version %d:\n%s", tc.step, tc.point, tc.want, diff)
		}
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, newest)
}

// next is the migrations of this binary and one more.
func next(t *testing.T, up, down string) fstest.MapFS {
	t.Helper()
	all := fstest.MapFS{}
	names, err := fs.Glob(os.DirFS("."), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &fstest.MapFile{Data: text}
	}
	all["000999_next.up.sql"] = &fstest.MapFile{Data: []byte(up)}
	all["000999_next.down.sql"] = &fstest.MapFile{Data: []byte(down)}
	return all
}

// records passes the messages of a log on.
type records struct {
	slog.Handler
	messages chan string
}

func (r records) Handle(_ context.Context, record slog.Record) error {
	var text strings.Builder
	text.WriteString(record.Message)
	record.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&text, " %s", a)
		return true
	})
	r.messages <- text.String()
	return nil
}

func newRecords() records {
	return records{Handler: slog.NewTextHandler(os.Stderr, nil), messages: make(chan string, 100)}
}

// A migration that waits for a lock gives up its place, so that traffic behind it goes on, and tries
// again. The log names it. After its last attempt it says that nothing was changed.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn, reader := pgtest.Session(t, url), pgtest.Session(t, url)
	files := next(t, `ALTER TABLE convos ADD COLUMN next integer`, `ALTER TABLE convos DROP COLUMN next`)
	log := newRecords()

	holder, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM convos`); err != nil {
		t.Fatal(err)
	}
	err = migrations.Up(t.Context(), url, migrations.Files(files), migrations.Patience(10*time.Millisecond, 2, time.Millisecond))
	for _, part := range []string{"000999_next.up.sql", "2 attempts", "nothing was changed"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("it does not say %q: %v", part, err)
		}
	}
	done := make(chan error, 1)
	go func() {
		done <- migrations.Up(t.Context(), url, migrations.Files(files), migrations.Log(slog.New(log)),
			migrations.Patience(10*time.Millisecond, 1000, time.Millisecond))
	}()
	text := <-log.messages
	if strings.Contains(text, "another process") { // the server has not yet ended the session of the first try
		text = <-log.messages
	}
	if !strings.Contains(text, "waited for a lock") || !strings.Contains(text, "000999_next.up.sql") || !strings.Contains(text, "attempt=1") {
		t.Errorf("the log says %q", text)
	}
	// A read that came after the migration asked for its lock is answered while the holder goes on.
	mustExec(t, reader, `SET statement_timeout = '30s'; SELECT FROM convos`)
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, 999)
}

// X9: a schema in which keys were used again can be taken back beyond migration 4.
func TestDownAfterReusedKeys(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	mustExec(t, conn, `
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, idempotency_key, key_retired, created_at)
		SELECT gen_random_uuid(), n::text::bytea, 'did:plc:alice', 1, 1, 'key', n < 3, now() FROM generate_series(1, 3) AS n;
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, idempotency_key, key_retired, created_at)
		SELECT 'did:plc:alice', n::text::bytea, '', 1, '', now(), false, 'available', 'key', n < 3, now() FROM generate_series(1, 3) AS n;
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, key_retired, created_at)
		SELECT '00000000-0000-0000-0000-000000000001', n, 3, 'did:plc:alice', n, '', 'submitCommit key', '', n < 3, now() FROM generate_series(1, 3) AS n`)
	if err := migrations.Down(t.Context(), url, pairs(t)-3); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, 3)
	var kept string
	err := conn.QueryRow(t.Context(), `
		SELECT concat_ws(' ', (SELECT count(idempotency_key) FROM convos), (SELECT count(idempotency_key) FROM key_packages),
			(SELECT string_agg(seq::text, ',') FROM messages WHERE idempotency_key = 'submitCommit key'),
			(SELECT count(*) FROM convos), (SELECT count(*) FROM key_packages), (SELECT count(*) FROM messages))`).Scan(&kept)
	if err != nil || kept != "1 1 3 3 3 3" {
		t.Fatalf("kept %q, %v", kept, err)
	}
	if err := migrations.Down(t.Context(), url, 3); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, 0)
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
}

// After the down of migration 28 each message has a row of its own, in the same order.
func TestDownAfterSharedRows(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	mustExec(t, conn, `
		CREATE TABLE events_20260101 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');
		INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at) VALUES
			(1, '2026-01-01', 3, '00000000-0000-0000-0000-000000000001', 1, 10, now());
		INSERT INTO events (stream_seq, day, kind, convo_ids, seqs, sizes, size, created_at) VALUES
			(4, '2026-01-01', 1, ARRAY['00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001']::uuid[],
				'{2,1,3}', '{20,30,40}', 0, now());
		INSERT INTO outbox (kind, convo_ids, seqs, sizes, created_at)
			VALUES (1, ARRAY['00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001']::uuid[], '{2,4}', '{50,60}', now());
		INSERT INTO outbox (kind, convo_id, seq, size, created_at) VALUES (3, '00000000-0000-0000-0000-000000000002', 3, 70, now())`)
	if err := migrations.Down(t.Context(), url, pairs(t)-27); err != nil {
		t.Fatal(err)
	}
	var events, outbox string
	err := conn.QueryRow(t.Context(), `
		SELECT (SELECT string_agg(concat_ws('/', stream_seq, kind, right(convo_id::text, 1), seq, size), ' ' ORDER BY stream_seq) FROM events),
			(SELECT string_agg(concat_ws('/', kind, right(convo_id::text, 1), seq, size), ' ' ORDER BY id) FROM outbox)`).Scan(&events, &outbox)
	if err != nil || events != "1/3/1/1/10 2/1/1/2/20 3/1/2/1/30 4/1/1/3/40" || outbox != "1/2/2/50 1/1/4/60 3/2/3/70" {
		t.Fatalf("events %q, outbox %q, %v", events, outbox, err)
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
}

// O10: a binary on a newer schema goes on if the schema says that it may, and else says in a
// sentence which versions they are.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	newest := migrations.Newest()
	for _, tc := range []struct {
		min  uint
		want string
	}{
		{newest, ""},
		{newest + 1, fmt.Sprintf("the database has schema version 999, which needs an mlsd that knows version %d, and this mlsd knows version %d: start a newer mlsd",
			newest+1, newest)},
	} {
		url := pgtest.URL(t)
		files := next(t, fmt.Sprintf(`INSERT INTO schema_support VALUES (999, %d)`, tc.min), `DELETE FROM schema_support WHERE version = 999`)
		if err := migrations.Up(t.Context(), url, migrations.Files(files)); err != nil {
			t.Fatal(err)
		}
		err := migrations.Up(t.Context(), url)
		var version *migrations.VersionError
		if got := ""; errors.As(err, &version) {
			if got = version.Error(); got != tc.want {
				t.Errorf("min_binary %d: %q, want %q", tc.min, got, tc.want)
			}
		} else if err != nil || tc.want != "" {
			t.Errorf("min_binary %d: %v, want %q", tc.min, err, tc.want)
		}
		if err := migrations.Down(t.Context(), url, 1); err == nil {
			t.Errorf("min_binary %d: this binary took back a migration that it does not know", tc.min)
		}
		wantState(t, pgtest.Session(t, url), 999)
	}
}

// A file whose statements cannot run in a transaction runs again after an interruption.
func TestOutsideOfATransaction(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	files := next(t, "-- mlsd: outside of a transaction\nDROP INDEX CONCURRENTLY IF EXISTS next;\nCREATE INDEX CONCURRENTLY next ON convos (name);\n",
		"-- mlsd: outside of a transaction\nDROP INDEX CONCURRENTLY IF EXISTS next;\n")
	faults := failpoint.New()
	if err := faults.Arm(failpoint.BeforeCommit, "up 999", failpoint.Error); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), url, migrations.Files(files), migrations.Faults(faults)); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatal(err)
	}
	wantState(t, conn, migrations.Newest())
	if err := migrations.Up(t.Context(), url, migrations.Files(files)); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, 999)
	var valid bool
	if err := conn.QueryRow(t.Context(), `SELECT indisvalid FROM pg_index WHERE indexrelid = 'next'::regclass`).Scan(&valid); err != nil || !valid {
		t.Fatal(valid, err)
	}
	if err := migrations.Down(t.Context(), url, 1, migrations.Files(files)); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, migrations.Newest())
}

// What Losses names is what the downs delete.
func TestLosses(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	all, err := migrations.Losses(t.Context(), url, pairs(t))
	if err != nil || len(all) != pairs(t) {
		t.Fatalf("%d losses, %v", len(all), err)
	}
	if _, err := migrations.Losses(t.Context(), url, pairs(t)+1); err == nil {
		t.Error("more migrations than there are")
	}
	was := catalog(t, conn)
	for _, loss := range all {
		if err := migrations.Down(t.Context(), url, 1); err != nil {
			t.Fatal(err)
		}
		is := catalog(t, conn)
		want := migrations.Loss{Migration: loss.Migration, Rows: loss.Rows}
		for _, table := range slices.Sorted(maps.Keys(was)) {
			if is[table] == nil {
				want.Tables = append(want.Tables, table)
				continue
			}
			if loss.Migration == "000009_tokens" && table == "used_tokens" {
				continue // made anew, as it was before: all its rows are lost
			}
			for _, column := range was[table] {
				if !slices.Contains(is[table], column) {
					want.Columns = append(want.Columns, table+"."+column)
				}
			}
		}
		slices.Sort(loss.Tables)
		slices.Sort(loss.Columns)
		slices.Sort(want.Columns)
		if diff := cmp.Diff(want, loss); diff != "" {
			t.Errorf("%s (-want +got):\n%s", loss.Migration, diff)
		}
		was = is
	}
}

// X1: of a schema that an earlier mlsd has left dirty, Inspect finds the version, or says that a
// person must look, and Force clears the mark.
func TestForce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	if err := migrations.Force(t.Context(), url, migrations.Newest()); err == nil || !strings.Contains(err.Error(), "not dirty") {
		t.Errorf("Force of a schema that is not dirty: %v", err)
	}
	for _, tc := range []struct{ is, marked uint }{ // golang-migrate marks the version that it goes to
		{24, 24}, // its up had taken effect
		{22, 22},
		{22, 21}, // the down of 22 had not
		{21, 22}, // the up of 22 had not
		{21, 21}, // it had
		{1, 0},   // the down of 1 had not
		{0, 0},
	} {
		mustExec(t, conn, `UPDATE schema_migrations SET dirty = false`)
		if tc.is == 1 {
			downTo(t, url, 14)
			if found, err := migrations.Inspect(t.Context(), conn, 14); err != nil || found.Sure || len(found.Files) != 1 || found.Files[0] != "000014_key_indexes.up.sql" {
				t.Errorf("migration 14 has only indexes: %+v, %v", found, err)
			}
		}
		if s, err := migrations.Read(t.Context(), conn); err != nil {
			t.Fatal(err)
		} else if s.Version > tc.is {
			downTo(t, url, tc.is)
		}
		marked := int64(tc.marked)
		if marked == 0 {
			marked = -1 // golang-migrate's word for none
		}
		mustExec(t, conn, `DELETE FROM schema_migrations`)
		mustExec(t, conn, `INSERT INTO schema_migrations VALUES ($1, true)`, marked)
		for name, do := range map[string]func() error{
			"Up":   func() error { return migrations.Up(t.Context(), url) },
			"Down": func() error { return migrations.Down(t.Context(), url, 1) },
		} {
			if err := do(); !errors.Is(err, migrations.ErrDirty) {
				t.Errorf("%s of a dirty schema: %v", name, err)
			}
		}
		found, err := migrations.Inspect(t.Context(), conn, tc.marked)
		if err != nil || !found.Sure || found.Version != tc.is {
			t.Errorf("version %d marked as %d: found %+v, %v", tc.is, tc.marked, found, err)
		}
		if err := migrations.Force(t.Context(), url, 12345); err == nil {
			t.Error("a version that does not exist")
		}
		if err := migrations.Force(t.Context(), url, found.Version); err != nil {
			t.Fatal(err)
		}
		wantState(t, conn, tc.is)
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
}

// downTo takes every migration after a version back.
func downTo(t *testing.T, url string, version uint) {
	t.Helper()
	now, err := migrations.Version(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	later := 0
	for _, file := range files {
		number, _, _ := strings.Cut(file, "_")
		if n, err := strconv.ParseUint(number, 10, 0); err == nil && uint(n) > version && uint(n) <= now {
			later++
		}
	}
	if later > 0 {
		err = migrations.Down(t.Context(), url, later)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A migration starts when the process before it has ended, and the schema is then seen anew.
func TestWaitForAnother(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	files := next(t, `CREATE TABLE next ()`, `DROP TABLE next`)
	faults := failpoint.New()
	if err := faults.Arm(failpoint.BeforeCommit, "up 999", failpoint.Pause); err != nil {
		t.Fatal(err)
	}
	first, second, log := make(chan error, 1), make(chan error, 1), newRecords()
	go func() { first <- migrations.Up(t.Context(), url, migrations.Files(files), migrations.Faults(faults)) }()
	<-faults.Reached(failpoint.BeforeCommit, "up 999")
	wantState(t, pgtest.Session(t, url), migrations.Newest()) // readers do not wait for the migration
	go func() {
		second <- migrations.Up(t.Context(), url, migrations.Files(files), migrations.Log(slog.New(log)))
	}()
	if text := <-log.messages; !strings.Contains(text, "another process") {
		t.Errorf("the log says %q", text)
	}
	faults.Resume(failpoint.BeforeCommit, "up 999")
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	wantState(t, pgtest.Session(t, url), 999)
}

func TestServes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		state  migrations.State
		binary uint
		want   string
	}{
		{migrations.State{Version: 24, MinBinary: 9}, 24, ""},
		{migrations.State{Version: 25, MinBinary: 24}, 24, ""},
		{migrations.State{Version: 25}, 24, ""},
		{migrations.State{Version: 26, MinBinary: 25}, 24,
			"the database has schema version 26, which needs an mlsd that knows version 25, and this mlsd knows version 24: start a newer mlsd"},
		{migrations.State{Version: 23}, 24, "the database has schema version 23, and this mlsd needs version 24: run mlsd migrate up"},
		{migrations.State{}, 24, "the database has schema version 0, and this mlsd needs version 24: run mlsd migrate up"},
		{migrations.State{Version: 24, Dirty: true}, 24, migrations.ErrDirty.Error() + " (version 24)"},
	} {
		got := ""
		if err := tc.state.Serves(tc.binary); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%+v, binary %d: %q, want %q", tc.state, tc.binary, got, tc.want)
		}
	}
}

// Files that do not belong together are found when they are read, not when they are needed.
func TestUnusableFiles(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for want, files := range map[string]fstest.MapFS{
		"000001_a has no up, or no down": {"000001_a.up.sql": file("SELECT 1")},
		"has the same number":            {"000001_a.up.sql": file("SELECT 1"), "000001_b.down.sql": file("SELECT 1")},
		"the name is not like":           {"one.sql": file("SELECT 1")},
		"is not positive":                {"000000_a.up.sql": file("SELECT 1")},
	} {
		err := migrations.Up(t.Context(), "postgres://127.0.0.1:1/none", migrations.Files(files))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
