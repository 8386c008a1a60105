package disputes

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
	"mlsd/messages"
)

// Sweep ends disputes whose time is over, each in its own transaction. db is the pool for
// maintenance.
func Sweep(db *pgxpool.Pool) worker.Sweep {
	return worker.Sweep{Rows: "disputes_ended", Batch: func(ctx context.Context) (ended int64, more bool, err error) {
		type due struct {
			Convo uuid.UUID
			Epoch int64
		}
		all, err := pgpool.Collect(ctx, db, pgx.RowToStructByPos[due], `
			SELECT convo_id, epoch FROM disputes WHERE state = 'open' AND ends_at <= now() ORDER BY ends_at LIMIT $1`,
			worker.SweepRows)
		if err != nil {
			return 0, false, fmt.Errorf("read the disputes: %w", err)
		}
		for _, d := range all {
			if err := endDue(ctx, db, d.Convo, d.Epoch); err != nil {
				return ended, false, err
			}
			ended++
		}
		return ended, len(all) == worker.SweepRows, nil
	}}
}

// endDue ends a dispute. If the convo has been deleted, endDue deletes the dispute.
func endDue(ctx context.Context, db *pgxpool.Pool, convo uuid.UUID, epoch int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.reason', 'its time was over', true)`); err != nil {
			return err
		}
		_, err := End(ctx, tx, convo, epoch)
		if errors.Is(err, messages.ErrConvoNotFound) {
			return Forget(ctx, tx, convo)
		}
		return err
	})
}

// ErrNotFound says that the commit of an epoch was never in dispute.
var ErrNotFound = errors.New("no commit of this epoch was in dispute")

// End ends a dispute, and inserts the event for the members. changed is false if the dispute had
// ended before. The reports of members stay, and an epoch is disputed only once, so the same
// dispute does not begin again. Errors: messages.ErrConvoNotFound, ErrNotFound.
func End(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64) (changed bool, err error) {
	c, err := lock(ctx, tx, convo)
	if err != nil {
		return false, err
	}
	var open bool
	var committer syntax.DID
	err = tx.QueryRow(ctx, `SELECT state = 'open', committer FROM disputes WHERE convo_id = $1 AND epoch = $2`, convo,
		epoch).Scan(&open, &committer)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, ErrNotFound
	}
	if err != nil {
		return false, fmt.Errorf("read the dispute: %w", err)
	}
	if !open {
		return false, nil
	}
	return true, c.end(ctx, tx, epoch, committer)
}

// Erase deletes what a person has reported about a convo. Where a dispute names the person, Erase
// puts the tombstone.
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

// Forget deletes the reports and disputes of a deleted convo.
func Forget(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM epoch_reports WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM forked_epochs WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM commit_reports WHERE convo_id = $1`, convo)
	batch.Queue(`DELETE FROM disputes WHERE convo_id = $1`, convo)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "delete what was reported")
}
