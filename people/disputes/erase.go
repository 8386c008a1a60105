package disputes

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes what a person has reported of a convo, and puts its tombstone where a dispute names it.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH epochs AS (
			DELETE FROM epoch_reports WHERE convo_id = $1 AND did = $2 RETURNING 1
		), commits AS (
			DELETE FROM commit_reports WHERE convo_id = $1 AND did = $2 RETURNING 1
		), named AS (
			UPDATE disputes SET committer = $3 WHERE convo_id = $1 AND committer = $2 RETURNING 1
		)
		SELECT (SELECT count(*) FROM epochs) + (SELECT count(*) FROM commits) + (SELECT count(*) FROM named)`, convo, p.DID,
		p.In(convo)).Scan(&n)
	return n, errs.Wrap(err, "erase what a member has reported")
}

// Forget deletes the reports and disputes of a convo that is deleted.
func Forget(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM epoch_reports WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM forked_epochs WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM commit_reports WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM disputes WHERE convo_id = $1`, convo)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "delete what was reported")
}
