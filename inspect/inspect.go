// Package inspect answers the questions of operators from the database: what the command inspect
// prints, and what the console shows. It changes nothing, and owns no table.
//
// Every function runs in a transaction of its caller, which sees the rows of all callers
// (mlsd.maintenance) and bounds the time of statements. Functions return DIDs in full: who shows
// them shortens them. Field names of the results are those of the command's JSON, and do not change.
package inspect

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// list runs a query and scans each row into a T, column by column.
func list[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// first is the first row of list, nil if there is none.
func first[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (*T, error) {
	found, err := list[T](ctx, tx, sql, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// moment formats a time as sentences have it.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }
