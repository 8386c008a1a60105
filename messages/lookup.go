package messages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// found is a message that the log has under a draft's key and with the same content.
type found struct {
	seq int64
	at  time.Time
	age time.Duration // when the database answered, and up to a millisecond more
}

// lookup returns what the log has of the drafts, by the index of the draft.
func (l *Log) lookup(ctx context.Context, drafts []Draft) (map[int]found, error) {
	rows, err := l.db.Query(ctx, `
		SELECT d.ord - 1, r.seq, r.created_at, clock_timestamp() - r.created_at
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS d (convo_id, sender_did, key, hash, ord)
		CROSS JOIN LATERAL (
			SELECT seq, created_at, request_hash FROM messages
			WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
		) r
		WHERE r.request_hash = d.hash`, appendParams(drafts)[:4]...) // convos, senders, keys, hashes
	all := map[int]found{}
	if err == nil {
		var i int
		var f found
		_, err = pgx.ForEachRow(rows, []any{&i, &f.seq, &f.at, &f.age}, func() error {
			all[i] = f
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look the keys up: %w", err)
	}
	return all, nil
}

// running reports whether another transaction has inserted d's key and has not ended. The key is in
// the unique index by then, so an insert of the same key has to wait. running tries one, in a
// transaction that it rolls back.
func (l *Log) running(ctx context.Context, d Draft) bool {
	const probeTimeout = time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	tx, err := l.db.BeginTx(ctx, pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL lock_timeout = '10ms'`})
	if err != nil {
		return false
	}
	defer l.rollback(ctx, tx)
	const unusedSeq = 1 << 62 // larger than the seq of any message
	_, err = tx.Exec(ctx, `
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		VALUES ($1, $2, $3, $4, $5, '', $6, $7, now())
		ON CONFLICT DO NOTHING`,
		d.ConvoID, unusedSeq+rand.Int64N(unusedSeq), int16(mls.ContentTypeApplication), d.Sender, d.Epoch, d.Key, d.Hash[:])
	return pgpool.LockTimeout(err)
}
