package pgpool

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Blocks is a part of a table. A statement that reads a whole table in several transactions uses
// it: WHERE ctid >= $1::tid AND ctid < $2::tid.
//
// If another transaction writes a row meanwhile, the statement can miss the row, or read it twice.
type Blocks struct{ Table, From, To string }

// NextBlocks returns n blocks of a table, beginning with the block from. next is the block after
// them, or 0 if the table has no more blocks.
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
