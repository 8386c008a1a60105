package push

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes the push targets of an account and up to limit of its jobs, and returns the number
// of deleted rows. It does not stop a running call.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	var n int64
	err := tx.QueryRow(ctx, `
		WITH targets AS (
			DELETE FROM push_targets WHERE did = $1 RETURNING did
		), jobs AS (
			DELETE FROM push_jobs
			WHERE (did, id) IN (SELECT did, id FROM push_jobs WHERE did = $1 ORDER BY did, id LIMIT $2 FOR UPDATE)
			RETURNING did
		)
		SELECT (SELECT count(*) FROM targets) + (SELECT count(*) FROM jobs)`, p.DID, limit).Scan(&n)
	return n, errs.Wrap(err, "erase push targets and jobs")
}

// EraseSender puts the tombstone of a person into the row that waits for a convo's pushes. The
// other members are still called.
func EraseSender(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID) (int64, error) {
	tag, err := tx.Exec(ctx, `UPDATE push_convos SET sender_did = $3 WHERE convo_id = $1 AND sender_did = $2`, convo,
		p.DID, p.In(convo))
	return tag.RowsAffected(), errs.Wrap(err, "erase a sender from waiting pushes")
}
