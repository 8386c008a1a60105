package messages

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Purge deletes up to limit of the oldest entries of a log whose convo has been deleted, and
// returns how many. The last call deletes the log's row of log_floors too.
func Purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM messages
		WHERE convo_id = $1 AND seq IN (SELECT seq FROM messages WHERE convo_id = $1 ORDER BY seq LIMIT $2 FOR UPDATE)`, convo, limit)
	if err == nil && tag.RowsAffected() < int64(limit) {
		_, err = tx.Exec(ctx, `DELETE FROM log_floors WHERE convo_id = $1`, convo)
	}
	if err != nil {
		return 0, fmt.Errorf("delete the log: %w", err)
	}
	return tag.RowsAffected(), nil
}
