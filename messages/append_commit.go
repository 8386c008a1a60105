package messages

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/mls"
)

// CommitEntry is the log entry of a commit.
type CommitEntry struct {
	ConvoID uuid.UUID
	Sender  syntax.DID
	Key     string // made by CommitKey
	Hash    [sha256.Size]byte
	Epoch   int64 // the epoch that the commit creates
	Body    []byte

	Successor []byte // group_id of the group that replaces this group, if the commit closes the convo
}

// AppendCommit writes e as the next entry of the log and returns its seq. The caller's transaction
// must hold the row lock of the convo, and must have checked the epoch under that lock. A unique
// index on (convo_id, epoch) ensures that an epoch has one commit.
func AppendCommit(ctx context.Context, tx pgx.Tx, e CommitEntry) (seq int64, at time.Time, err error) {
	err = tx.QueryRow(ctx, `
		WITH convo AS (
			UPDATE convos SET last_seq = last_seq + 1 WHERE id = $1::uuid RETURNING last_seq
		), appended AS (
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT $1::uuid, convo.last_seq, $2, $3, $4, $5, $6, $7, date_trunc('milliseconds', clock_timestamp()) FROM convo
			RETURNING convo_id, seq, kind, octet_length(body) AS size, created_at
		), outboxed AS (
			INSERT INTO outbox (kind, convo_id, seq, size, detail, created_at)
			SELECT kind, convo_id, seq, size,
				CASE WHEN $8::bytea IS NOT NULL THEN jsonb_build_object('epoch', $4::bigint, 'successorGroupId', encode($8, 'hex'))
					END, created_at
			FROM appended
		)
		SELECT seq, created_at FROM appended`,
		e.ConvoID, int16(mls.ContentTypeCommit), e.Sender, e.Epoch, e.Body, e.Key, e.Hash[:], e.Successor).Scan(&seq, &at)
	return seq, at, err
}
