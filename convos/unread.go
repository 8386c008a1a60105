package convos

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Bounds of the count of a member's unread messages.
const (
	unreadMost    = 100  // messages that are counted
	unreadEntries = 1000 // entries of one log that one call reads; the next call of List goes on behind them
	unreadKept    = 64   // entries that a call reads without keeping its count for the next call
)

// Counted is how far the unread messages of a convo's reader are counted: n application messages of
// others are behind the entry from, up to the entry to. This stays true, because entries are
// neither changed nor put in between. Another cursor, another invitation, and an expiry of messages
// give from another value, and so the next count begins anew.
type Counted struct {
	convo    uuid.UUID
	from, to int64
	n        int64
}

// Keep keeps counts of a reader's unread messages for the next call of List. It skips rows that
// another transaction has locked. Kept or not, the next answer is the same, unless a log has more
// than unreadEntries to count.
func (c *Cursors) Keep(ctx context.Context, reader syntax.DID, counts []Counted) error {
	if len(counts) == 0 {
		return nil
	}
	convos := make(pgpool.Array[pgpool.UUID], len(counts))
	from, to, n := make(pgpool.Array[pgpool.Int], len(counts)), make(pgpool.Array[pgpool.Int], len(counts)),
		make(pgpool.Array[pgpool.Int], len(counts))
	for i, k := range counts {
		convos[i], from[i], to[i], n[i] = pgpool.UUID(k.convo), pgpool.Int(k.from), pgpool.Int(k.to), pgpool.Int(k.n)
	}
	batch := &pgx.Batch{}
	batch.Queue(`SET LOCAL synchronous_commit = off`) // a lost count is counted again
	batch.Queue(keepCounts, reader, convos, from, to, n)
	return errs.Wrap(pgpool.SendTx(ctx, c.db, batch, nil), "keep counts of unread messages")
}

const keepCounts = `
	UPDATE members SET counted_from = k.from_seq, counted_to = k.to_seq, counted = k.n
	FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::integer[]) AS k (convo_id, from_seq, to_seq, n)
	CROSS JOIN LATERAL (
		SELECT convo_id FROM members WHERE convo_id = k.convo_id AND did = $1 FOR NO KEY UPDATE SKIP LOCKED
	) free
	WHERE members.convo_id = free.convo_id AND members.did = $1`
