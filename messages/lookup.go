package messages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// lookup returns what the log holds of drafts under their own keys and for their own content, by index.
func (l *Log) lookup(ctx context.Context, drafts []Draft) (map[int]outcome, error) {
	n := len(drafts)
	convos, senders, keys, hashes := make([]uuid.UUID, n), make([]syntax.DID, n), make([]string, n), make([][]byte, n)
	for i := range drafts {
		d := &drafts[i]
		convos[i], senders[i], keys[i], hashes[i] = d.ConvoID, d.Sender, d.Key, d.Hash[:]
	}
	found := map[int]outcome{}
	rows, err := l.db.Query(ctx, `
		SELECT d.ord - 1, held.seq, held.created_at
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS d (convo_id, sender_did, key, hash, ord)
		CROSS JOIN LATERAL (
			SELECT seq, created_at, request_hash FROM messages
			WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
		) held
		WHERE held.request_hash = d.hash`, convos, senders, keys, hashes)
	if err == nil {
		var i int
		o := outcome{status: statusAppended}
		_, err = pgx.ForEachRow(rows, []any{&i, &o.seq, &o.at}, func() error {
			found[i] = o
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look the keys up: %w", err)
	}
	return found, nil
}

// running reports whether another transaction has written d's key and has not ended: its entry in the unique index is there already,
// and whoever wants to insert the same has to wait. So it tries to, in a transaction that comes to nothing.
func (l *Log) running(ctx context.Context, d Draft) bool {
	const probeTimeout = time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	tx, err := l.db.BeginTx(ctx, pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL lock_timeout = '10ms'`})
	if err != nil {
		return false
	}
	defer l.rollback(ctx, tx)
	const nowhere = 1 << 62 // a seq that no log comes to
	_, err = tx.Exec(ctx, `
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		VALUES ($1, $2, $3, $4, $5, '', $6, $7, now())
		ON CONFLICT DO NOTHING`,
		d.ConvoID, nowhere+rand.Int64N(nowhere), int16(mls.ContentTypeApplication), d.Sender, d.Epoch, d.Key, d.Hash[:])
	return pgpool.LockTimeout(err)
}

func (l *Log) rollback(ctx context.Context, tx pgx.Tx) {
	if err := tx.Rollback(ctx); err != nil {
		l.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}
