package events_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/operator/invariants"
)

// database is the name of the world's database, and a connection to another one.
func (w *world) database(t *testing.T) (name string, other *pgx.Conn) {
	t.Helper()
	cfg := w.db.Config().ConnConfig.Copy()
	name, cfg.Database = cfg.Database, "postgres"
	other, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return name, other
}

// disconnect ends all connections to the world's database.
func (w *world) disconnect(t *testing.T, name string, other *pgx.Conn) {
	t.Helper()
	w.db.Reset()
	if _, err := other.Exec(t.Context(),
		`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1`, name); err != nil {
		t.Fatal(err)
	}
}

// backup copies the world's database, and returns a function that puts the copy in its place. The
// copy is another database of the same PostgreSQL, as a restored dump is. Then a statement is run:
// it can change what the copy knows of its original.
func (w *world) backup(t *testing.T, then string) (restore func()) {
	t.Helper()
	name, other := w.database(t)
	exec := func(format string, args ...any) {
		t.Helper()
		if _, err := other.Exec(t.Context(), fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	w.disconnect(t, name, other)
	exec(`CREATE DATABASE %s TEMPLATE %s`, name+"_back", name)
	return func() {
		t.Helper()
		w.disconnect(t, name, other)
		exec(`DROP DATABASE %s`, name)
		exec(`ALTER DATABASE %s RENAME TO %s`, name+"_back", name)
		if _, err := w.db.Exec(t.Context(), then); err != nil {
			t.Fatal(err)
		}
	}
}

// recover does rounds of the sequencer and the hub. The first ones find that their connections have
// ended.
func (n *node) recover(t *testing.T) {
	t.Helper()
	var err error
	for range 5 {
		if _, err = n.seq.Round(t.Context()); err != nil {
			n.seq.Resign() // as Run does
			n.seq.TryNow()
			continue
		}
		if _, err = n.hub.Round(t.Context()); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	n.publish(t)
}

// sameDatabase makes a copy look like an older state of its original.
const sameDatabase = `
	UPDATE generations SET database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())`

// E3: a failover or a restore loses four events, and eight others get places, the first four of them
// those of the lost ones. A subscriber that has lost events is told so, and gets all eight. One that
// has none goes on and gets all eight. Both is so on the node whose hub remembers the lost events,
// and on another one.
func TestDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		then               string
		noticed, byCommand bool // by a node that remembers nothing, by an operator; else by who remembers the stream's end
	}{
		"another timeline": {sameDatabase + `, timeline = timeline + 1`, true, false},
		"a restored dump":  {``, true, false}, // A27
		"an older copy":    {sameDatabase, false, false},
		"an operator":      {sameDatabase, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, n, convo := newConvo(t, 5, alice)
			common := ends(t, n.subscribe(t, alice, 0), 6)
			n.seq.Resign()
			restore := w.backup(t, tc.then)
			w.say(t, convo, alice, 4)
			n.seq.TryNow()
			n.publish(t)
			s := n.subscribe(t, alice, 0)
			lost := ends(t, s, 10)
			restore()
			if tc.byCommand {
				w.restored(t)
			}
			w.say(t, convo, alice, 8)
			sequencer := n // it remembers where the stream ended
			if tc.noticed || tc.byCommand {
				n.seq.Resign()
				sequencer = w.node(t)
			}
			sequencer.seq.TryNow()
			sequencer.recover(t)
			n.recover(t)
			if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
				t.Fatalf("the subscription goes on: %v", err)
			}
			other := w.node(t)
			other.publish(t)
			for _, at := range []*node{n, other} {
				eight := []string{"6", "7", "8", "9", "10", "11", "12", "13"}
				everything := slices.Concat([]string{"alice joined", "1", "2", "3", "4", "5"}, eight)
				for _, c := range []struct {
					cursor   string
					outdated bool
					want     []string
				}{
					{common.number, false, eight},
					{common.position, false, eight},
					{lost.number, true, eight},
					{lost.position, true, eight},
					{"zz.0:4", true, everything}, // of a generation that was lost
					{"3", false, slices.Concat([]string{"3", "4", "5"}, eight)},
					{"0", false, everything},
				} {
					again := at.resume(t, c.cursor)
					if again.Outdated != c.outdated {
						t.Errorf("cursor %s: outdated is %t", c.cursor, again.Outdated)
					}
					want(t, next(t, again, len(c.want)), c.want...)
					nothing(t, again)
				}
			}
			e, err := other.resume(t, common.number).Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if first := fmt.Sprint(e.Number()); len(first) < len(lost.number) || len(first) == len(lost.number) &&
				first <= lost.number {
				t.Errorf("the number %s comes after the lost %s", first, lost.number)
			}
		})
	}
}

// G14: a switchover that loses nothing is no error in the log, and one that loses events says how many.
// In both, the readers connect again.
func TestSwitchoverInTheLog(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lost  int
		level string
	}{"nothing is lost": {0, "INFO"}, "four events are lost": {4, "ERROR"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var lines strings.Builder
			n := w.node(t, func(c *events.HubConfig) { c.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
			n.publish(t)
			convo := w.convo(t, alice)
			w.say(t, convo, alice, 5)
			n.publish(t)
			n.seq.Resign()
			restore := w.backup(t, sameDatabase+`, timeline = timeline + 1`)
			w.say(t, convo, alice, tc.lost)
			n.seq.TryNow()
			n.publish(t)
			s := n.subscribe(t, alice, 0)
			ends(t, s, 6+tc.lost)
			restore()
			n.seq.Resign()
			other := w.node(t)
			other.seq.TryNow()
			other.recover(t)
			n.recover(t)
			if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
				t.Errorf("the subscription goes on: %v", err)
			}
			if want := fmt.Sprintf(" lost=%d ", tc.lost); !strings.Contains(lines.String(), want) ||
				!strings.Contains(lines.String(), "level="+tc.level) || tc.lost == 0 && strings.Contains(lines.String(), "ERROR") {
				t.Errorf("want %s and %q in %s", tc.level, want, lines.String())
			}
		})
	}
}

// G14: an older copy of the database replaces its disk while no node runs, and nobody runs mlsd
// restored. PostgreSQL shows no trace. The first client with a lost event is in the log, with the
// command; further ones are summed; afterwards the command has ended it.
func TestCopyPutBackInTheLog(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 3, alice)
	n.seq.Resign()
	restore := w.backup(t, sameDatabase)
	w.say(t, convo, alice, 2)
	n.seq.TryNow()
	n.publish(t)
	lost := ends(t, n.subscribe(t, alice, 0), 6)
	n.seq.Resign()
	restore()
	var lines strings.Builder
	other := w.node(t, func(c *events.HubConfig) { c.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
	other.publish(t)
	refused := func(cursor string) {
		t.Helper()
		c, err := events.ParseCursor(cursor)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.hub.Subscribe(t.Context(), events.Request{DID: alice, Cursor: &c}); !errors.Is(err,
			events.ErrFutureCursor) {
			t.Errorf("%s: %v", cursor, err)
		}
	}
	refused(lost.number)
	if got := lines.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "run mlsd restored") ||
		!strings.Contains(got, "cursor="+lost.position) || !strings.Contains(got, "cursors=1") {
		t.Errorf("the log: %s", got)
	}
	lines.Reset()
	refused(lost.position)
	refused(lost.number)
	if lines.String() != "" {
		t.Errorf("it is said again: %s", lines.String())
	}
	other.hub.SetClock(func() time.Time { return time.Now().Add(2 * time.Minute) })
	refused(lost.number)
	if !strings.Contains(lines.String(), "cursors=3") {
		t.Errorf("after a minute: %s", lines.String())
	}
	lines.Reset()
	unknown := "zzzzzz.0:1"
	other.resume(t, unknown)
	if lines.String() != "" {
		t.Errorf("within a minute: %s", lines.String())
	}
	other.hub.SetClock(func() time.Time { return time.Now().Add(4 * time.Minute) })
	other.resume(t, unknown)
	if !strings.Contains(lines.String(), "cursor="+unknown) || !strings.Contains(lines.String(), "cursors=2") {
		t.Errorf("a generation that the database lacks: %s", lines.String())
	}
}

// cursors are the two forms of a cursor.
type cursors struct{ number, position string }

// ends reads n events, and returns the cursor of the last one.
func ends(t *testing.T, s *events.Subscription, n int) (c cursors) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		e, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		c = cursors{fmt.Sprint(e.Number()), e.Position()}
	}
	return c
}

// resume subscribes alice after a cursor.
func (n *node) resume(t *testing.T, cursor string) *events.Subscription {
	t.Helper()
	c, err := events.ParseCursor(cursor)
	if err != nil {
		t.Fatal(err)
	}
	return n.subscribeTo(t, events.Request{DID: alice, Cursor: &c})
}

// restored says that the database was restored.
func (w *world) restored(t *testing.T) (generation int64) {
	t.Helper()
	conn, err := w.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	id, _, err := events.Restored(t.Context(), conn.Conn())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// E3: a reader that catches up while the database is replaced reads no event of the new generation
// behind those of the old one. The hub has not noticed yet.
func TestCatchUpNoticesGeneration(t *testing.T) {
	t.Parallel()
	w, n, _ := newConvo(t, 5, alice)
	n.hub.Forget(t, 1)
	s := n.subscribe(t, alice, 0)
	w.restored(t)
	if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrClosing) {
		t.Errorf("it reads on: %v", err)
	}
	if _, err := n.hub.Subscribe(t.Context(), events.Request{DID: alice, Cursor: new(events.From(0))}); !errors.Is(err,
		events.ErrClosing) {
		t.Errorf("a subscription on a hub of an old generation: %v", err)
	}
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	next(t, n.subscribe(t, alice, 0), 6)
}

// E3: no event gets a place in a generation that is not recorded. A leader notices in the statement
// that gives the places; a new leader notices before its first one.
func TestSequencerRecordsGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice)
	n.publish(t)
	generations := func() (ids []int64) {
		rows, err := w.db.Query(t.Context(), `SELECT after_seq FROM generations ORDER BY id`)
		if err != nil {
			t.Fatal(err)
		}
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	w.say(t, convo, alice, 1)
	w.restored(t)
	n.publish(t) // the leader takes up the generation that an operator began
	if got := generations(); !slices.Equal(got, []int64{0, 1}) {
		t.Errorf("generations begin after %d", got)
	}
	n.seq.Resign()
	if _, err := w.db.Exec(t.Context(), `UPDATE generations SET system_identifier = 1`); err != nil {
		t.Fatal(err)
	}
	violated(t, w, "the stream's generation is that of this database")
	w.say(t, convo, alice, 1)
	m := w.node(t)
	m.publish(t)
	if got := generations(); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("generations begin after %d", got)
	}
}

// A27: a database that was restored from a dump has other OIDs, also in the same PostgreSQL and where
// the role may not ask which one that is. A generation begins, once, and the hook is called in its
// transaction. What else gives a table another file changes no OID.
func TestDumpIsNoticed(t *testing.T) {
	t.Parallel()
	var forbidden atomic.Bool // the role may not ask which PostgreSQL this is
	w := newWorld(t, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if !forbidden.Load() {
				return nil
			}
			_, err := conn.Exec(ctx, `SET search_path = s, pg_catalog, public`)
			return err
		}
	})
	exec := func(sql string) {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (n int) {
		t.Helper()
		if err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM generations`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	dumps := 0
	onDump := func(ctx context.Context, tx pgx.Tx) error {
		dumps++
		_, err := tx.Exec(ctx, `SELECT FROM generations`)
		return err
	}
	const (
		forbid = `CREATE SCHEMA s; CREATE FUNCTION s.pg_control_system(OUT system_identifier bigint) LANGUAGE plpgsql AS
			$$BEGIN RAISE insufficient_privilege; END$$`
		allow = `DROP SCHEMA s CASCADE`
	)
	generations := 1
	for _, tc := range []struct {
		sql           string
		begins, dumps int
	}{
		{`UPDATE generations SET database_oid = NULL, table_oid = NULL`, 0, 0}, // after the migration
		{`VACUUM FULL generations`, 0, 0},
		{`CLUSTER generations USING generations_pkey`, 0, 0},
		{`CREATE TABLE c AS TABLE generations; TRUNCATE generations; INSERT INTO generations TABLE c; DROP TABLE c`, 0, 0},
		{`UPDATE generations SET database_oid = 1`, 1, 1},
		{`UPDATE generations SET table_oid = 1`, 1, 1},
		{`CREATE TABLE other (LIKE generations INCLUDING ALL); INSERT INTO other TABLE generations; DROP TABLE generations;
			ALTER TABLE other RENAME TO generations`, 1, 1}, // pg_restore --clean
		{`UPDATE generations SET system_identifier = 1`, 1, 1},
		{`UPDATE generations SET timeline = 7`, 1, 0}, // a failover
		{forbid, 0, 0},
		{`UPDATE generations SET system_identifier = 1`, 0, 0}, // nobody can know
		{`UPDATE generations SET database_oid = 1`, 1, 1},
		{allow, 0, 0},
	} {
		exec(tc.sql)
		forbidden.Store(tc.sql == forbid || forbidden.Load() && tc.sql != allow)
		w.db.Reset()
		before := dumps
		for range 2 {
			n := w.node(t, func(c *events.HubConfig) { c.OnDump = onDump })
			if _, err := n.hub.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		generations += tc.begins
		if n := count(); n != generations || dumps-before != tc.dumps {
			t.Errorf("%s: %d generations, want %d; %d dumps", tc.sql, n, generations, dumps-before)
		}
	}
}

// violated demands that the invariants find a violation of a promise.
func violated(t *testing.T, w *world, promise string) {
	t.Helper()
	violations, err := invariants.Check(t.Context(), w.db)
	if err != nil || !slices.ContainsFunc(violations, func(v string) bool { return strings.HasPrefix(v, promise) }) {
		t.Errorf("no violation of %q: %q, %v", promise, violations, err)
	}
}
