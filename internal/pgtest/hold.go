package pgtest

import (
	"context"
	"fmt"
	"testing"

	"mlsd/internal/await"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// HoldInserts makes each statement that inserts into a table wait at its end, until release is
// called. It does so even if the statement finds its row there and inserts nothing. waiting returns
// how many statements of the database wait for a lock.
func HoldInserts(t testing.TB, db *pgxpool.Pool, table string) (waiting func() int, release func()) {
	t.Helper()
	const key = "4711"
	held, err := db.Acquire(t.Context())
	must(t, err)
	name := pgx.Identifier{table}.Sanitize()
	for _, sql := range []string{
		`CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pg_advisory_xact_lock_shared(` + key + `); RETURN NULL; END $$`,
		`CREATE TRIGGER wait_for_test AFTER INSERT ON ` + name + ` FOR EACH STATEMENT EXECUTE FUNCTION wait_for_test()`,
		`SELECT pg_advisory_lock(` + key + `)`,
	} {
		_, err := held.Exec(t.Context(), sql)
		must(t, err)
	}
	t.Cleanup(held.Release)
	waiting = func() int {
		t.Helper()
		return LockWaits(t, held)
	}
	release = func() {
		t.Helper()
		_, err := held.Exec(t.Context(), `SELECT pg_advisory_unlock(`+key+`)`)
		must(t, err)
	}
	return waiting, release
}

// LockWaits returns how many sessions of the database wait for a lock.
func LockWaits(t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (n int) {
	t.Helper()
	must(t, db.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
	return n
}

// AwaitLockWaits returns when n sessions of the database wait for locks.
func AwaitLockWaits(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	await.Until(t, fmt.Sprintf("%d sessions wait for locks", n), func() bool { return LockWaits(t, db) >= n })
}
