package idem_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// one returns a bench with a single connection, and counts its round trips. A transaction that does
// not release the connection blocks the test.
func one(t *testing.T) (*bench, *pgtest.Trips) {
	t.Helper()
	var trips pgtest.Trips
	b := &bench{db: pgtest.Database(t, pgtest.MaxConns(1), pgtest.CountTrips(&trips), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["lock_timeout"] = "50"
	})}
	b.Store = idem.New(b.db, &b.counts, slog.New(slog.DiscardHandler), nil)
	if _, err := b.db.Exec(t.Context(), `CREATE TABLE effects (id bigserial PRIMARY KEY, note text)`); err != nil {
		t.Fatal(err)
	}
	return b, &trips
}

// TestTripsOfAWrite: the statements of the record are sent with the BEGIN and with the COMMIT.
func TestTripsOfAWrite(t *testing.T) {
	t.Parallel()
	b, trips := one(t)
	inBatch := func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO effects (note) VALUES ('a batch')`)
		batch.Queue(`INSERT INTO effects (note) VALUES ('of two')`)
		return []byte("{}"), tx.SendBatch(ctx, batch).Close()
	}
	inQuery := func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		rows, err := tx.Query(ctx, `INSERT INTO effects (note) VALUES ('x') RETURNING note`)
		if err != nil {
			return nil, err
		}
		_, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
		return []byte("{}"), err
	}
	inExec := func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, `INSERT INTO effects (note) VALUES ('x')`)
		return []byte("{}"), err
	}
	for i := range 3 {
		for _, c := range []struct {
			name   string
			key    string
			effect idem.Effect
			want   int64
		}{
			{"with a record", fmt.Sprint("row ", i), effect, 3},
			{"a replay", fmt.Sprint("row ", i), effect, 4}, // reserve, reclaim, look up, roll back
			{"with a record, a batch", fmt.Sprint("batch ", i), inBatch, 3},
			{"without", "", effect, 2},
			{"without, a batch", "", inBatch, 2},
			{"without, a statement", "", inExec, 2},
			{"without, rows", "", inQuery, 3},
			{"nothing", "", func(context.Context, pgx.Tx) ([]byte, error) { return []byte("{}"), nil }, 0},
		} {
			before := trips.Count()
			if _, err := b.Do(t.Context(), request(c.key, "a", "1"), c.effect); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if n := trips.Count() - before; i == 2 && n != c.want { // by then the statements are prepared
				t.Errorf("%s: %d round trips, want %d", c.name, n, c.want)
			}
		}
	}
	if n := b.effects(t); n != 3*(1+2+1+2+1+1) {
		t.Errorf("%d effects", n)
	}
}

// TestWriteThatFailsAnywhere: a write that fails leaves nothing and releases the connection. It can
// fail before the transaction begins, in the effect, in a statement whose error the effect hides,
// or in the COMMIT.
func TestWriteThatFailsAnywhere(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	_, err := b.db.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE check_violation; END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (new.note = 'late') EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string, args ...any) idem.Effect {
		return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, sql, args...)
			return []byte("{}"), err
		}
	}
	for name, c := range map[string]struct {
		effect idem.Effect
		code   string
		want   error
	}{
		"a value that cannot be sent": {effect: exec(`INSERT INTO effects (note) VALUES ($1)`, struct{}{})},
		"no such table":               {exec(`INSERT INTO nothing VALUES (1)`), "42P01", nil},
		"a value that is refused":     {exec(`INSERT INTO effects (id) VALUES (NULL)`), "23502", nil},
		"by the COMMIT":               {exec(`INSERT INTO effects (note) VALUES ('late')`), "23514", nil},
		"its own error": {func(context.Context, pgx.Tx) ([]byte, error) { return nil, context.Canceled }, "",
			context.Canceled},
		"an error that it keeps to itself": {effect: func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return []byte("{}"), nil
		}},
	} {
		for _, key := range []string{"", name} {
			_, err := b.Do(t.Context(), request(key, "a", "1"), c.effect)
			if err == nil || pgpool.Code(err) != c.code && c.code != "" || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s, key %q: %v", name, key, err)
			}
		}
	}
	if n := b.effects(t); n != 0 {
		t.Errorf("%d effects", n)
	}
	for _, key := range []string{"by the COMMIT", "an error that it keeps to itself"} {
		if again, err := b.Do(t.Context(), request(key, "a", "2"), effect); err != nil || again.Replayed {
			t.Errorf("the key %q is taken: %+v, %v", key, again, err)
		}
	}
}

// TestNestedTransactions: an effect can roll a nested transaction back and go on.
func TestNestedTransactions(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	for _, key := range []string{"", "k"} {
		_, err := b.Do(t.Context(), request(key, "a", "1"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			nested, err := tx.Begin(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := nested.Exec(ctx, `INSERT INTO nothing VALUES (1)`); err == nil {
				return nil, errors.New("the statement did not fail")
			}
			if err := nested.Rollback(ctx); err != nil {
				return nil, err
			}
			return effect(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := b.effects(t); n != 2 {
		t.Errorf("%d effects", n)
	}
}
