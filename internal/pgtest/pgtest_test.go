package pgtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestDatabaseIsMigratedAndOurOwn(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			db := Database(t)
			var tables int
			const q = `SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename IN ('convos', 'messages')`
			if err := db.QueryRow(t.Context(), q).Scan(&tables); err != nil || tables != 2 {
				t.Errorf("%d tables, %v; want 2", tables, err)
			}
			if _, err := db.Exec(t.Context(), `CREATE TABLE mine (x int)`); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEmptyHasNoTables(t *testing.T) {
	t.Parallel()
	var tables int
	const q = `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`
	if err := Empty(t).QueryRow(t.Context(), q).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables, %v; want none", tables, err)
	}
}

func TestMaxConns(t *testing.T) {
	t.Parallel()
	if got := Empty(t).Config().MaxConns; got != defaultMaxConns {
		t.Errorf("MaxConns %d, want %d", got, defaultMaxConns)
	}
	if got := Empty(t, MaxConns(3)).Config().MaxConns; got != 3 {
		t.Errorf("MaxConns %d, want 3", got)
	}
}

func TestDatabaseIsDroppedEvenIfInUse(t *testing.T) {
	t.Parallel()
	var conn *pgx.Conn
	var name string
	t.Run("inner", func(t *testing.T) {
		var err error
		if conn, err = pgx.Connect(t.Context(), URL(t)); err != nil {
			t.Fatal(err)
		}
		name = conn.Config().Database
	})
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection outlived its database")
	}
	var exists bool
	const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	if err := Empty(t).QueryRow(t.Context(), q, name).Scan(&exists); err != nil || exists {
		t.Errorf("database exists: %v, %v", exists, err)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	db := Empty(t)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, err := db.Exec(t.Context(), `
		CREATE SCHEMA s;
		CREATE TABLE s.things (id int, a timestamptz, "B c" timestamptz, d date, n timestamptz, CHECK (a <= "B c"));
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'insert only'; END $$;
		CREATE TRIGGER t BEFORE UPDATE ON s.things FOR EACH ROW EXECUTE FUNCTION refuse();`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(),
		`INSERT INTO s.things SELECT 1, x, x, x::date, NULL FROM (SELECT $1::timestamptz AS x) v`, start); err != nil {
		t.Fatal(err)
	}
	check := func(a, b time.Time) {
		t.Helper()
		var gotA, gotB time.Time
		var n *time.Time
		if err := db.QueryRow(t.Context(), `SELECT a, "B c", n FROM s.things`).Scan(&gotA, &gotB, &n); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Time{a, b}, []time.Time{gotA.UTC(), gotB.UTC()}); diff != "" || n != nil {
			t.Errorf("(-want +got)\n%s n %v", diff, n)
		}
	}
	Age(t, db, "s.things", 90*time.Minute)
	check(start.Add(-90*time.Minute), start.Add(-90*time.Minute))
	Age(t, db, "s.things", 36*time.Hour, "a")
	check(start.Add(-37*time.Hour-30*time.Minute), start.Add(-90*time.Minute))
}
