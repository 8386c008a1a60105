package pgtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Clock is the clock of a database, which a test sets. Statements that name now() or
// clock_timestamp() read it, on the connections of a pool with OwnClock.
type Clock struct{ db *pgxpool.Pool }

// OwnClock makes a pool's statements find the functions of a Clock before PostgreSQL's.
func OwnClock(cfg *pgxpool.Config) {
	cfg.ConnConfig.RuntimeParams["search_path"] = "public, pg_catalog"
}

// NewClock replaces the clock of a pool with OwnClock. The new clock is right until it is set.
func NewClock(t testing.TB, db *pgxpool.Pool) *Clock {
	t.Helper()
	c := &Clock{db}
	c.SetRight(t)
	c.exec(t, `CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT public.clock_timestamp()'`)
	db.Reset()
	return c
}

// SetRight sets the clock to the real time.
func (c *Clock) SetRight(t testing.TB) {
	t.Helper()
	c.replace(t, "0")
}

// SetBeforeMidnight sets the clock to before, an interval, before the last midnight. A negative
// interval sets it to a time after that midnight.
func (c *Clock) SetBeforeMidnight(t testing.TB, before string) {
	t.Helper()
	var ahead string
	err := c.db.QueryRow(t.Context(), `
		SELECT (date_trunc('day', pg_catalog.clock_timestamp()) - $1::interval - pg_catalog.clock_timestamp())::text`,
		before).Scan(&ahead)
	if err != nil {
		t.Fatalf("pgtest: set the clock: %v", err)
	}
	c.replace(t, ahead)
}

// replace makes the clock ahead of the real one by an interval.
func (c *Clock) replace(t testing.TB, ahead string) {
	t.Helper()
	c.exec(t, fmt.Sprintf(`
		CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql
			AS 'SELECT pg_catalog.clock_timestamp() + interval ''%s'''`, ahead))
}

func (c *Clock) exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	if _, err := c.db.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: set the clock: %v", err)
	}
}
