package consent

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Blocked is one block of a person's.
type Blocked struct {
	DID syntax.DID
	At  time.Time // whole milliseconds
}

// Block makes did block another DID, and returns when it first did so. To block again changes
// nothing. It takes the lock of the blocked DID's invitations. A transaction that locks a convo
// locks it before that. convos.Block also declines what is open. Errors besides the database's:
// ErrOwnBlock, ErrTooManyBlocks.
func Block(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) (at time.Time, err error) {
	if did == blocked {
		return at, ErrOwnBlock
	}
	var others int
	batch := &pgx.Batch{}
	pgpool.LockBlocks.Queue(batch, did.String())
	pgpool.LockInvitations.Queue(batch, blocked.String())
	// A block that is there is locked, so that nobody ends it before this transaction does.
	batch.Queue(`
		WITH block AS (
			INSERT INTO blocks (did, blocked_did, created_at) VALUES ($1, $2, date_trunc('milliseconds', clock_timestamp()))
			ON CONFLICT (did, blocked_did) DO UPDATE SET did = excluded.did RETURNING created_at
		)
		SELECT created_at, (SELECT count(*) FROM blocks WHERE did = $1 AND blocked_did <> $2) FROM block`, did, blocked).
		QueryRow(func(row pgx.Row) error { return row.Scan(&at, &others) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return at, fmt.Errorf("block: %w", err)
	}
	if others >= MaxBlocks {
		return at, ErrTooManyBlocks
	}
	return at, nil
}

// Unblock ends the block of a DID, if there is one.
func Unblock(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) error {
	_, err := tx.Exec(ctx, `DELETE FROM blocks WHERE did = $1 AND blocked_did = $2`, did, blocked)
	return errs.Wrap(err, "unblock")
}

// Blocks returns the DIDs behind after that did blocks, in their order, at most limit of them, and
// says whether there are more. It is for did alone.
func Blocks(ctx context.Context, q pgpool.Queryer, did, after syntax.DID, limit int) (blocks []Blocked, more bool,
	err error) {
	blocks, err = pgpool.Collect(ctx, q, pgx.RowToStructByPos[Blocked], `
		SELECT blocked_did, created_at FROM blocks WHERE did = $1 AND blocked_did > $2 ORDER BY blocked_did LIMIT $3`, did,
		after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list blocks: %w", err)
	}
	if len(blocks) > limit {
		return blocks[:limit], true, nil
	}
	return blocks, false, nil
}
