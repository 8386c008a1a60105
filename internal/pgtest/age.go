package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Age moves the named timestamptz columns of all rows of a table by d into the past. If no column
// is named, it moves all timestamptz columns. mlsd uses only the database's clock. A test cannot
// move that clock forward, so it makes the rows older instead.
//
// Triggers and foreign keys do not fire, because mlsd does not do this.
func Age(t testing.TB, db *pgxpool.Pool, table string, d time.Duration, columns ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return age(ctx, tx, table, d, columns) })
	if err != nil {
		t.Fatalf("pgtest: age %s: %v", table, err)
	}
}

func age(ctx context.Context, tx pgx.Tx, table string, d time.Duration, columns []string) error {
	ident := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	if len(columns) == 0 {
		rows, err := tx.Query(ctx, `
			SELECT attname FROM pg_attribute
			WHERE attrelid = $1::regclass AND atttypid = 'timestamptz'::regtype
			  AND attnum > 0 AND NOT attisdropped AND attgenerated = ''`, ident)
		if err != nil {
			return err
		}
		if columns, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		if len(columns) == 0 {
			return fmt.Errorf("no timestamptz columns")
		}
	}
	var set []string
	for _, c := range columns {
		set = append(set, fmt.Sprintf("%[1]s = %[1]s - $1::interval", quote(c)))
	}
	if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE `+ident+` SET `+strings.Join(set, ", "), d)
	return err
}
