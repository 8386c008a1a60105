package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	pgx5 "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that sql.Open names

	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
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
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 1 {
		return 0
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
	err = migrations.Up(t.Context(), url, migrations.Files(files),
		migrations.Patience(10*time.Millisecond, 2, time.Millisecond))
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
	if !strings.Contains(text, "waited for a lock") || !strings.Contains(text, "000999_next.up.sql") ||
		!strings.Contains(text, "attempt=1") {
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
		{newest + 1, fmt.Sprintf("the database has schema version 999, which needs an mlsd that knows version %d, and "+
			"this mlsd knows version %d: start a newer mlsd",
			newest+1, newest)},
	} {
		url := pgtest.URL(t)
		files := next(t, fmt.Sprintf(`UPDATE installation SET min_binary = %d`, tc.min),
			`UPDATE installation SET min_binary = 0`)
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

// Downs names what a Down runs, and that is what Down does.
func TestDowns(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	all, err := migrations.Downs(t.Context(), url, pairs(t))
	if err != nil || len(all) != pairs(t) {
		t.Fatalf("%d scripts, %v", len(all), err)
	}
	for _, script := range all {
		if text, err := os.ReadFile(script.Name); err != nil || string(text) != script.SQL {
			t.Errorf("%s is not the file: %v", script.Name, err)
		}
	}
	if _, err := migrations.Downs(t.Context(), url, pairs(t)+1); err == nil {
		t.Error("more migrations than there are")
	}
}

// X1: a schema that another program has left dirty is not touched until Force has cleared the mark.
func TestForce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := pgtest.Session(t, url)
	newest := migrations.Newest()
	if err := migrations.Force(t.Context(), url, newest); err == nil || !strings.Contains(err.Error(), "not dirty") {
		t.Errorf("Force of a schema that is not dirty: %v", err)
	}
	mustExec(t, conn, `UPDATE schema_migrations SET dirty = true`)
	for name, do := range map[string]func() error{
		"Up":   func() error { return migrations.Up(t.Context(), url) },
		"Down": func() error { return migrations.Down(t.Context(), url, 1) },
	} {
		if err := do(); !errors.Is(err, migrations.ErrDirty) {
			t.Errorf("%s of a dirty schema: %v", name, err)
		}
	}
	if err := migrations.Force(t.Context(), url, 12345); err == nil {
		t.Error("a version that does not exist")
	}
	if err := migrations.Force(t.Context(), url, newest); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, newest)
	mustExec(t, conn, `UPDATE schema_migrations SET version = -1, dirty = true`) // golang-migrate's word for none
	if err := migrations.Force(t.Context(), url, 0); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, 0)
}

// golang-migrate's own driver for PostgreSQL reads the version, and respects the migration lock.
func TestGolangMigrateReads(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := pgx5.WithInstance(db, &pgx5.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := theirs.Close(); err != nil {
			t.Error(err)
		}
	}()
	if version, dirty, err := theirs.Version(); err != nil || dirty || version != int(migrations.Newest()) {
		t.Errorf("golang-migrate reads version %d, dirty %t, %v", version, dirty, err)
	}
	if err := theirs.Lock(); err != nil {
		t.Fatal(err)
	}
	files, log, done := next(t, `CREATE TABLE next ()`, `DROP TABLE next`), newRecords(), make(chan error, 1)
	go func() {
		done <- migrations.Up(t.Context(), url, migrations.Files(files), migrations.Log(slog.New(log)))
	}()
	if text := <-log.messages; !strings.Contains(text, "another process") {
		t.Errorf("the log says %q", text)
	}
	if err := theirs.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if version, _, err := theirs.Version(); err != nil || version != 999 {
		t.Errorf("golang-migrate reads version %d, %v", version, err)
	}
}

// A migration starts when the process before it has ended, and the schema is then seen anew.
func TestWaitForAnother(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	files := next(t, `CREATE TABLE next ()`, `DROP TABLE next`)
	faults := failpoint.New()
	failpointtest.Arm(t, faults, failpoint.BeforeCommit, "up 999", failpoint.Pause)
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
			"the database has schema version 26, which needs an mlsd that knows version 25, and this mlsd knows version 24: " +
				"start a newer mlsd"},
		{migrations.State{Version: 23}, 24,
			"the database has schema version 23, and this mlsd needs version 24: run mlsd migrate up"},
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

// Files that do not belong together are found before the database is asked.
func TestUnusableFiles(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for want, files := range map[string]fstest.MapFS{
		"duplicate migration file": {"000001_a.up.sql": file("SELECT 1"), "000001_b.up.sql": file("SELECT 1")},
		"there are none":           {"one.sql": file("SELECT 1")},
	} {
		err := migrations.Up(t.Context(), "postgres://127.0.0.1:1/none", migrations.Files(files))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Every up has its down, and the numbers have no gaps.
func TestPairs(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		number, direction := i/2+1, []string{"down", "up"}[i%2]
		if !regexp.MustCompile(fmt.Sprintf(`^%06d_\w+\.%s\.sql$`, number, direction)).MatchString(name) {
			t.Errorf("%s: want the %s of migration %d", name, direction, number)
		}
	}
}
