package messages

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Purge deletes the oldest entries of the log of a deleted convo: up to limit entries with up to
// maxBytes of bodies, but at least one entry. It returns how many it deleted. If there was none, it
// deletes the log's row of log_floors. Nobody else may write to the log, and calls for the same
// convo must not overlap.
func Purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int, maxBytes int64) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM messages
		WHERE convo_id = $1 AND seq <= (
			SELECT max(seq) FROM (
				SELECT seq, row_number() OVER so_far AS nth, sum(bytes) OVER so_far AS total
				FROM (SELECT seq, octet_length(body) AS bytes FROM messages WHERE convo_id = $1 ORDER BY seq LIMIT $2) oldest
				WINDOW so_far AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)
			) counted
			WHERE total <= $3 OR nth = 1)`, convo, limit, maxBytes)
	if err == nil && tag.RowsAffected() == 0 {
		_, err = tx.Exec(ctx, `DELETE FROM log_floors WHERE convo_id = $1`, convo)
	}
	if err != nil {
		return 0, fmt.Errorf("delete the log: %w", err)
	}
	return tag.RowsAffected(), nil
}
