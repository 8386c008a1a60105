package pgpool_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// SendTx commits all of its queries or none, calls their functions, and leaves a connection that can
// be used.
func TestSendTx(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		second string // SQL, after a first insert
		args   []any
		before error
		fn     error // of the second query
		code   string
		want   error
		rows   int // of x, afterwards; if direct is false, an error of a function rolls back
	}{
		"committed":        {second: `INSERT INTO x VALUES (2) RETURNING a`, rows: 2},
		"refused before":   {second: `INSERT INTO x VALUES (2) RETURNING a`, before: refused, want: refused},
		"function failed":  {second: `INSERT INTO x VALUES (2) RETURNING a`, fn: refused, want: refused, rows: 2},
		"failed":           {second: `INSERT INTO x VALUES (1) RETURNING a`, code: "23505"},
		"failed at COMMIT": {second: `INSERT INTO y VALUES (7) RETURNING a`, code: "23503"},
		"not encoded": {second: `INSERT INTO x VALUES ($1) RETURNING a`, args: []any{struct{}{}},
			want: pgpool.ErrNotSent},
		"no row": {second: `SELECT a FROM x WHERE a = 9`, want: pgx.ErrNoRows, rows: 1},
	} {
		for _, direct := range []bool{false, true} {
			if direct && c.before != nil {
				continue
			}
			t.Run(fmt.Sprintf("%s, direct %v", name, direct), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Empty(t, pgtest.MaxConns(1))
				if _, err := db.Exec(t.Context(), `
					CREATE TABLE x (a int PRIMARY KEY);
					CREATE TABLE y (a int REFERENCES x DEFERRABLE INITIALLY DEFERRED)`); err != nil {
					t.Fatal(err)
				}
				var pid uint32
				if err := db.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					t.Fatal(err)
				}
				batch := &pgx.Batch{}
				batch.Queue(`INSERT INTO x VALUES (1)`)
				read := 0
				batch.Queue(c.second, c.args...).QueryRow(func(row pgx.Row) error {
					if err := row.Scan(&read); err != nil {
						return err
					}
					return c.fn
				})
				before := func() error { return c.before }
				if direct {
					before = nil
				}
				err := pgpool.SendTx(t.Context(), db, batch, before)
				failed := c.want != nil || c.code != ""
				switch {
				case pgpool.Code(err) != c.code, !errors.Is(err, c.want) && c.want != nil, (err != nil) != failed:
					t.Errorf("got %v", err)
				case !failed && read != 2:
					t.Errorf("read %d", read)
				}
				var rows int
				var after uint32
				if err := db.QueryRow(t.Context(), `SELECT count(*), pg_backend_pid() FROM x`).Scan(&rows, &after); err != nil {
					t.Fatal(err)
				}
				want := c.rows
				if !direct && failed {
					want = 0
				}
				if rows != want || after != pid {
					t.Errorf("%d rows, want %d; backend %d, then %d", rows, want, pid, after)
				}
			})
		}
	}
}

// A transaction that got no connection has written nothing. It made the node panic: a message that
// nobody had judged was looked up as one whose outcome is unknown.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), "postgres://mlsd@127.0.0.1:1/mlsd?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = pgpool.SendTx(t.Context(), db, &pgx.Batch{}, nil)
	if err == nil || pgpool.OutcomeUnknown(err) || !pgpool.Unavailable(err) {
		t.Errorf("got %v: unknown outcome %v, unavailable %v", err, pgpool.OutcomeUnknown(err), pgpool.Unavailable(err))
	}
}
