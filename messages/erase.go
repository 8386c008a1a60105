package messages

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/tombstone"
)

// EraseSender puts the tombstone of a person into the log entries that the person sent into a
// convo. It changes up to limit commits and up to limit other entries. It returns how many it
// changed, and whether there may be more. Commits that may have an idempotency record change all at
// once, however small limit is, so the transaction must have deleted their records (idem.Forget).
// The entries stay, because the log has no gaps, and members need commits to follow the group.
func EraseSender(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID, limit int64) (n int64, more bool,
	err error) {
	stone, pattern := p.In(convo), p.Pattern()
	var recent, commits, others int64
	batch := &pgx.Batch{}
	count := func(n *int64) func(pgconn.CommandTag) error {
		return func(tag pgconn.CommandTag) error {
			*n = tag.RowsAffected()
			return nil
		}
	}
	batch.Queue(`
		UPDATE messages SET sender_did = $3, key_retired = true
		WHERE convo_id = $1 AND sender_did = $2 AND kind = 3 AND NOT key_retired`, convo, p.DID, stone).Exec(count(&recent))
	batch.Queue(`
		UPDATE messages SET sender_did = $3
		WHERE (convo_id, seq) IN (
			SELECT convo_id, seq FROM messages WHERE convo_id = $1 AND sender_did = $2 AND kind = 3 LIMIT $4)`,
		convo, p.DID, stone, limit).Exec(count(&commits))
	batch.Queue(`
		UPDATE messages SET sender_did = $3, embed_uri = regexp_replace(embed_uri, $4, $3, 'g')
		WHERE (convo_id, seq) IN (
			SELECT convo_id, seq FROM messages WHERE convo_id = $1 AND sender_did = $2 AND kind <> 3 LIMIT $5)`,
		convo, p.DID, stone, pattern, limit).Exec(count(&others))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return 0, false, fmt.Errorf("erase a sender: %w", err)
	}
	return recent + commits + others, commits == limit || others == limit, nil
}
