package welcome

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase puts the tombstone of a person into up to limit of its Welcomes of a convo, and drops what
// its devices have said. It returns how many, and whether there can be more. All of these Welcomes
// have ended: the person has left. The caller holds the convo's lock.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID, limit int64) (n int64, more bool,
	err error) {
	tag, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM welcomes WHERE convo_id = $1 AND recipient_did = $2 ORDER BY id LIMIT $4 FOR UPDATE
		)
		UPDATE welcomes w
		SET recipient_did = $3, device_id = 'erased', last_error = NULL,
			last_failure = CASE WHEN last_failure IS NOT NULL THEN 'erased' END
		FROM locked
		WHERE w.convo_id = $1 AND w.id = locked.id`, convo, p.DID, p.In(convo), limit)
	return tag.RowsAffected(), tag.RowsAffected() == limit, errs.Wrap(err, "erase a recipient of Welcomes")
}
