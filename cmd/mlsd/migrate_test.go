package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/migrations"
)

// stuckMigration is "mlsd migrate up" in a process of its own that has run a part of a migration: it
// waits for a lock.
type stuckMigration struct {
	*child
	database string
	conn     *pgx.Conn
	holder   pgx.Tx // has the lock
	backend  int    // process ID of the migration's session
	before   string // version
}

// newStuckMigration lets migration 24 wait for the lock of a table that its last statement changes.
func newStuckMigration(t *testing.T) *stuckMigration {
	t.Helper()
	m := &stuckMigration{database: pgtest.URL(t)}
	numbers := migrationNumbers(t)
	n := 0
	for _, number := range numbers {
		if number >= 24 {
			n++
		}
	}
	m.before = strconv.Itoa(numbers[len(numbers)-n-1])
	if err := migrations.Down(t.Context(), m.database, n); err != nil {
		t.Fatal(err)
	}
	m.conn = pgtest.Session(t, m.database)
	var err error
	if m.holder, err = pgtest.Session(t, m.database).Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.holder.Exec(t.Context(), `SELECT FROM nodes`); err != nil { // the first statement makes a table, the last one changes nodes
		t.Fatal(err)
	}
	m.child = start(t, dataDir(t), []string{"MLSD_DATABASE_URL=" + m.database}, "migrate", "up")
	eventually(t, "the migration waits for the lock", func() bool {
		err := m.conn.QueryRow(t.Context(), `
			SELECT coalesce(max(pid), 0) FROM pg_locks
			WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) -- other tests' tables have the same oid
				AND relation = 'nodes'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted`).Scan(&m.backend)
		if err != nil {
			t.Fatal(err)
		}
		return m.backend != 0
	})
	return m
}

// wantUntouched expects the version from before, without a dirty mark or a part of the migration,
// and an "mlsd migrate up" that works.
func (m *stuckMigration) wantUntouched(t *testing.T) {
	t.Helper()
	if err := m.holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session of the migration has ended", func() bool {
		var there bool
		if err := m.conn.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1`, m.backend).Scan(&there); err != nil {
			t.Fatal(err)
		}
		return !there
	})
	var got string
	err := m.conn.QueryRow(t.Context(), `
		SELECT version || ' ' || dirty || ' ' || (to_regclass('schema_support') IS NOT NULL) FROM schema_migrations`).Scan(&got)
	if want := m.before + " false false"; err != nil || got != want {
		t.Errorf("version, dirty, half a migration: %q, %v; want %q", got, err, want)
	}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "version"}} {
		s := launch(t, []string{"MLSD_DATABASE_URL=" + m.database}, args...)
		if err := s.wait(); err != nil {
			t.Errorf("%v: %v", args, err)
		} else if args[1] == "version" && s.stdout.String() != strconv.Itoa(newestMigration(t))+"\n" {
			t.Errorf("version %q", s.stdout)
		}
	}
}

// X1: kill -9 of mlsd migrate in the middle of a migration leaves the old version.
func TestKillInMigration(t *testing.T) {
	t.Parallel()
	m := newStuckMigration(t)
	m.kill()
	m.wantUntouched(t)
}

// X1: the loss of the connection in the middle of a migration leaves the old version.
func TestConnectionLostInMigration(t *testing.T) {
	t.Parallel()
	m := newStuckMigration(t)
	if _, err := m.conn.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, m.backend); err != nil {
		t.Fatal(err)
	}
	if status := m.wait(); status.ExitStatus() != 1 {
		t.Errorf("status %v", status)
	}
	m.wantUntouched(t)
}

// X9: nothing is taken back while a node runs. A schema that is taken back in spite of that makes the
// node not ready, and the node says why.
func TestDownUnderARunningServer(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	s := boot(t, nil, "--database-url", database)
	newest := strconv.Itoa(newestMigration(t))
	migrate := func(args ...string) *server {
		return launch(t, nil, append([]string{"--database-url", database, "migrate"}, args...)...)
	}
	conn := pgtest.Session(t, database)
	eventually(t, "the node is known", func() bool {
		var known bool
		if err := conn.QueryRow(t.Context(), `SELECT count(*) > 0 FROM nodes`).Scan(&known); err != nil {
			t.Fatal(err)
		}
		return known
	})
	migrate("down", "--yes-delete-data").fails("1 nodes run on this database", "stop them first")
	status := migrate("status")
	if err := status.wait(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"database " + newest, "this mlsd " + newest, "dirty no", "serves yes", "live nodes 1", "build " + version() + ", knows " + newest} {
		if text := strings.Join(strings.Fields(status.stdout.String()), " "); !strings.Contains(text, want) {
			t.Errorf("migrate status does not say %q: %s", want, text)
		}
	}
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")

	if err := migrations.Down(t.Context(), database, 1); err != nil {
		t.Fatal(err)
	}
	numbers := migrationNumbers(t)
	older := fmt.Sprintf("the database has schema version %d, and this mlsd needs version %s: run mlsd migrate up", numbers[len(numbers)-2], newest)
	wantReadiness(t, s, http.StatusServiceUnavailable, older)
	eventually(t, "the log says it", func() bool { return strings.Contains(s.stderr.String(), older) })
	if err := migrations.Up(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	wantReadiness(t, s, http.StatusOK, "ok")

	// O10: a newer schema is fine if it says so.
	for _, tc := range []struct {
		change string
		status int
		text   string
	}{
		{`UPDATE schema_migrations SET version = 998`, http.StatusOK, "ok"},
		{`INSERT INTO schema_support VALUES (998, 997)`, http.StatusServiceUnavailable,
			"the database has schema version 998, which needs an mlsd that knows version 997, and this mlsd knows version " + newest + ": start a newer mlsd"},
		{`DELETE FROM schema_support WHERE version = 998`, http.StatusOK, "ok"},
		{`UPDATE schema_migrations SET dirty = true`, http.StatusServiceUnavailable, migrations.ErrDirty.Error() + " (version 998)"},
		{`UPDATE schema_migrations SET dirty = false`, http.StatusOK, "ok"},
	} {
		if _, err := conn.Exec(t.Context(), tc.change); err != nil {
			t.Fatal(err)
		}
		wantReadiness(t, s, tc.status, tc.text)
	}
	if _, err := conn.Exec(t.Context(), `UPDATE schema_migrations SET version = $1`, newest); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if down := migrate("down", "--yes-delete-data"); down.wait() != nil {
		t.Errorf("migrate down after the node has stopped: %v", down.err)
	}
}

// wantReadiness waits until /readyz answers this.
func wantReadiness(t *testing.T, s *server, status int, text string) {
	t.Helper()
	var gotStatus int
	var got string
	eventually(t, fmt.Sprintf("/readyz answers %d %q", status, text), func() bool {
		gotStatus, got = fetch(t, s.admin+"/readyz")
		return gotStatus == status && got == text+"\n"
	})
}

// O10: an old mlsd on a schema that it cannot serve with ends with one sentence. On a newer schema
// that says that it may, it serves.
func TestStartOnANewerSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	conn := pgtest.Session(t, database)
	newest := newestMigration(t)
	if _, err := conn.Exec(t.Context(), `UPDATE schema_migrations SET version = 998`); err != nil {
		t.Fatal(err)
	}
	s := boot(t, nil, "--database-url", database)
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")
	s.stop()
	if _, err := conn.Exec(t.Context(), `INSERT INTO schema_support VALUES (998, $1)`, newest+1); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve"}, {"migrate", "up"}} {
		launch(t, nil, append([]string{"--database-url", database}, args...)...).fails(fmt.Sprintf(
			"the database has schema version 998, which needs an mlsd that knows version %d, and this mlsd knows version %d: start a newer mlsd", newest+1, newest))
	}
}

// X1: the commands lead a person out of a dirty schema.
func TestDirtySchema(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	conn := pgtest.Session(t, database)
	migrate := func(args ...string) *server {
		return launch(t, nil, append([]string{"--database-url", database, "migrate"}, args...)...)
	}
	newest := strconv.Itoa(newestMigration(t))
	migrate("force", newest).fails("not dirty")
	if _, err := conn.Exec(t.Context(), `UPDATE schema_migrations SET dirty = true`); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"up", "version", "down", "down --yes-delete-data"} {
		migrate(strings.Fields(args)...).fails("dirty", "mlsd migrate status", "mlsd migrate force")
	}
	launch(t, nil, "--database-url", database).fails("dirty", "mlsd migrate force")
	status := migrate("status")
	if err := status.wait(); err != nil {
		t.Fatal(err)
	}
	if text := status.stdout.String(); !strings.Contains(text, "mlsd migrate force "+newest+"\n") || !strings.Contains(text, "tables and columns") {
		t.Errorf("migrate status: %s", text)
	}
	migrate("force").fails("the version that the schema has")
	migrate("force", "12345").fails("there is no version 12345")
	force := migrate("force", newest)
	if err := force.wait(); err != nil || !strings.Contains(force.stdout.String(), "not dirty any more") || !strings.Contains(force.stderr.String(), "marked") {
		t.Errorf("migrate force: %v, %q, %q", err, force.stdout, force.stderr)
	}
	if up := migrate("up"); up.wait() != nil {
		t.Error(up.err)
	}
}
