package messages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/outbox"
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
	event := outbox.Event{Kind: outbox.Commit, Size: len(e.Body)}
	if e.Successor != nil {
		event.Detail = outbox.Detail{Epoch: e.Epoch, SuccessorGroupID: hex.EncodeToString(e.Successor)}
	}
	return appendEntry(ctx, tx, event, e.ConvoID, e.Sender, e.Epoch, e.Body, e.Key, e.Hash)
}

// appendEntry writes an entry of the event's kind at the end of a log, and the event.
func appendEntry(ctx context.Context, tx pgx.Tx, event outbox.Event, convo uuid.UUID, sender syntax.DID, epoch int64,
	body []byte, key string, hash [sha256.Size]byte) (seq int64, at time.Time, err error) {
	batch := &pgx.Batch{}
	batch.Queue(`
		WITH convo AS (
			UPDATE convos SET last_seq = last_seq + 1 WHERE id = $1::uuid RETURNING last_seq
		)
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1::uuid, convo.last_seq, $2, $3, $4, $5, $6, $7, date_trunc('milliseconds', clock_timestamp()) FROM convo
		RETURNING seq, created_at`,
		convo, int16(event.Kind), sender, epoch, body, key, hash[:]).
		QueryRow(func(row pgx.Row) error { return row.Scan(&seq, &at) })
	outbox.Queue(batch, convo, event)
	err = tx.SendBatch(ctx, batch).Close()
	return seq, at, err
}
