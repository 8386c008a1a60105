package pgpool

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Blocks is a part of a table, for a statement that reads a whole table in several transactions:
// WHERE ctid >= $1::tid AND ctid < $2::tid.
//
// A row that another transaction writes meanwhile can be missed, or met twice.
type Blocks struct{ Table, From, To string }

// NextBlocks returns the n blocks of a table that begin with the block from, and where the next ones
// begin: 0 if the table has no more.
func NextBlocks(ctx context.Context, tx pgx.Tx, table string, from, n int64) (b Blocks, next int64, err error) {
	var size int64
	err = tx.QueryRow(ctx, `SELECT pg_relation_size($1::regclass) / current_setting('block_size')::bigint`,
		table).Scan(&size)
	if err != nil {
		return b, 0, fmt.Errorf("read the size of %s: %w", table, err)
	}
	if next = from + n; next >= size {
		next = 0
	}
	return Blocks{Table: table, From: fmt.Sprintf("(%d,0)", from), To: fmt.Sprintf("(%d,0)", from+n)}, next, nil
}
