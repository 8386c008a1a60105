package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
	"mlsd/migrations"
	"mlsd/node"
)

// stuckMigration is "mlsd migrate up" in a process of its own that has run a part of a migration: it
// waits for a lock.
type stuckMigration struct {
	*child
	database string
	conn     *pgx.Conn
	holder   pgx.Tx // has the lock
	backend  int    // process ID of the migration's session
}

// newStuckMigration lets the baseline wait in the middle: a table with a name that it wants is being
// made, in a transaction that has not ended.
func newStuckMigration(t *testing.T) *stuckMigration {
	t.Helper()
	m := &stuckMigration{database: pgtest.EmptyURL(t)}
	m.conn = pgtest.Session(t, m.database)
	var err error
	if m.holder, err = pgtest.Session(t, m.database).Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.holder.Exec(t.Context(), `CREATE TABLE transitions ()`); err != nil { // it is one of the last
		t.Fatal(err)
	}
	m.child = start(t, dataDir(t), []string{"MLSD_DATABASE_URL=" + m.database}, "migrate", "up")
	await.Until(t, "the migration waits for the lock", func() bool {
		err := m.conn.QueryRow(t.Context(), `
			SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'mlsd migrate' AND wait_event_type = 'Lock'`).
			Scan(&m.backend)
		if err != nil {
			t.Fatal(err)
		}
		return m.backend != 0
	})
	return m
}

// wantUntouched expects a database without a version and without a part of the migration, and an
// "mlsd migrate up" that works.
func (m *stuckMigration) wantUntouched(t *testing.T) {
	t.Helper()
	if err := m.holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the session of the migration has ended", func() bool {
		var there bool
		if err := m.conn.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1`,
			m.backend).Scan(&there); err != nil {
			t.Fatal(err)
		}
		return !there
	})
	var tables int
	err := m.conn.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`).Scan(&tables)
	if err != nil || tables != 0 {
		t.Errorf("half a migration: %d tables, %v", tables, err)
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
	await.Until(t, "the node is known", func() bool {
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
	for _, want := range []string{"database " + newest, "this mlsd " + newest, "dirty no", "serves yes", "live nodes 1",
		"build " + node.Version() + ", knows " + newest} {
		if text := strings.Join(strings.Fields(status.stdout.String()), " "); !strings.Contains(text, want) {
			t.Errorf("migrate status does not say %q: %s", want, text)
		}
	}
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")

	// Only the version goes back, so that the node finds its tables when it comes again.
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`DELETE FROM schema_migrations`)
	older := fmt.Sprintf("the database has schema version 0, and this mlsd needs version %s: run mlsd migrate up", newest)
	wantReadiness(t, s, http.StatusServiceUnavailable, older)
	await.Until(t, "the log says it", func() bool { return strings.Contains(s.stderr.String(), older) })
	exec(`INSERT INTO schema_migrations VALUES ($1, false)`, newestMigration(t))
	wantReadiness(t, s, http.StatusOK, "ok")

	// O10: a newer schema is fine if it says so.
	for _, tc := range []struct {
		change string
		status int
		text   string
	}{
		{`UPDATE schema_migrations SET version = 998`, http.StatusOK, "ok"},
		{`UPDATE installation SET min_binary = 997`, http.StatusServiceUnavailable,
			"the database has schema version 998, which needs an mlsd that knows version 997, and this mlsd knows version " +
				newest + ": start a newer mlsd"},
		{`UPDATE installation SET min_binary = 0`, http.StatusOK, "ok"},
		{`UPDATE schema_migrations SET dirty = true`, http.StatusServiceUnavailable,
			migrations.ErrDirty.Error() + " (version 998)"},
		{`UPDATE schema_migrations SET dirty = false`, http.StatusOK, "ok"},
	} {
		exec(tc.change)
		wantReadiness(t, s, tc.status, tc.text)
	}
	exec(`UPDATE schema_migrations SET version = $1`, newestMigration(t))
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
	await.Until(t, fmt.Sprintf("/readyz answers %d %q", status, text), func() bool {
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
	if _, err := conn.Exec(t.Context(), `UPDATE installation SET min_binary = $1`, newest+1); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve"}, {"migrate", "up"}} {
		launch(t, nil, append([]string{"--database-url", database}, args...)...).fails(fmt.Sprintf(
			"the database has schema version 998, which needs an mlsd that knows version %d, and this mlsd knows version %d: "+
				"start a newer mlsd", newest+1, newest))
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
		migrate(strings.Fields(args)...).fails("dirty", "mlsd migrate force")
	}
	launch(t, nil, "--database-url", database).fails("dirty", "mlsd migrate force")
	status := migrate("status")
	if err := status.wait(); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(strings.Fields(status.stdout.String()), " "); !strings.Contains(text, "dirty yes serves no") ||
		!strings.Contains(text, "mlsd migrate force") {
		t.Errorf("migrate status: %s", text)
	}
	migrate("force").fails("the version that the tables have")
	migrate("force", "12345").fails("there is no version 12345")
	force := migrate("force", newest)
	if err := force.wait(); err != nil || !strings.Contains(force.stdout.String(), "not dirty any more") {
		t.Errorf("migrate force: %v, %q", err, force.stdout)
	}
	if up := migrate("up"); up.wait() != nil {
		t.Error(up.err)
	}
}
