package operator

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// list runs a query and scans each row into a T, column by column.
func list[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	return pgpool.Collect(ctx, tx, pgx.RowToStructByPos[T], sql, args...)
}

// first returns the first row of list, or nil if there is none.
func first[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (*T, error) {
	found, err := list[T](ctx, tx, sql, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// sampledRows is about how many rows of a table a page reads. Of a larger table, the page reads a
// random part, and its figures are estimates.
const sampledRows = 200_000

// Sampled returns how much of a table to read, in per cent.
func Sampled(ctx context.Context, tx pgx.Tx, table string) (percent float64, err error) {
	var rows float64
	if err := tx.QueryRow(ctx, `SELECT greatest(reltuples, 1)::float8 FROM pg_class WHERE oid = $1::regclass`,
		table).Scan(&rows); err != nil {
		return 0, err
	}
	return min(WholeTable, WholeTable*sampledRows/rows), nil
}

// WholeTable is all of a table, in per cent.
const WholeTable = 100

// scaled estimates the number of all rows, if a part of the table has n.
func scaled(n int64, percent float64) int64 {
	return int64(math.Round(float64(n) * WholeTable / percent))
}

// moment formats a time for a sentence.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }
