package disputes

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/messages"
)

// Reaper ends disputes whose time is over. Any number of nodes can run one.
type Reaper struct{ db *pgxpool.Pool }

// NewReaper returns a reaper. db is for maintenance.
func NewReaper(db *pgxpool.Pool) *Reaper { return &Reaper{db} }

// reapBatch bounds the disputes that a round ends.
const reapBatch = 500

// RunOnce ends the disputes that are due, each in its own transaction, and returns how many.
func (r *Reaper) RunOnce(ctx context.Context) (ended int64, err error) {
	type due struct {
		Convo     uuid.UUID
		Epoch     int64
		Committer syntax.DID
	}
	rows, err := r.db.Query(ctx, `
		SELECT convo_id, epoch, committer FROM disputes WHERE state = 'open' AND ends_at <= now() ORDER BY ends_at LIMIT $1`, reapBatch)
	if err != nil {
		return 0, fmt.Errorf("read the disputes: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return 0, fmt.Errorf("read the disputes: %w", err)
	}
	for _, d := range all {
		err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.reason', 'its time was over', true)`); err != nil {
				return err
			}
			_, err := End(ctx, tx, d.Convo, d.Epoch)
			if errors.Is(err, messages.ErrConvoNotFound) {
				return Forget(ctx, tx, d.Convo)
			}
			return err
		})
		if err != nil {
			return ended, err
		}
		ended++
	}
	return ended, nil
}

// ErrNotFound says that the commit of an epoch was never in dispute.
var ErrNotFound = errors.New("no commit of this epoch was in dispute")

// End ends a dispute, and tells the members. changed is false if it has ended before. What members
// report stays, and an epoch is disputed once: so the same dispute does not begin again. Errors:
// messages.ErrConvoNotFound, ErrNotFound.
func End(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64) (changed bool, err error) {
	c, err := lock(ctx, tx, convo)
	if err != nil {
		return false, err
	}
	var open bool
	var committer syntax.DID
	err = tx.QueryRow(ctx, `SELECT state = 'open', committer FROM disputes WHERE convo_id = $1 AND epoch = $2`, convo, epoch).Scan(&open, &committer)
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
