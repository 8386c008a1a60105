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
			return End(ctx, tx, d.Convo, d.Epoch)
		})
		if err != nil {
			return ended, err
		}
		ended++
	}
	return ended, nil
}

// End ends a dispute, and tells the members. It changes nothing if the dispute has ended. It deletes
// it if the convo is deleted.
func End(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64) error {
	c, err := lock(ctx, tx, convo)
	if errors.Is(err, messages.ErrConvoNotFound) {
		return Forget(ctx, tx, convo)
	}
	if err != nil {
		return err
	}
	var committer syntax.DID
	err = tx.QueryRow(ctx, `SELECT committer FROM disputes WHERE convo_id = $1 AND epoch = $2 AND state = 'open'`, convo, epoch).Scan(&committer)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the dispute: %w", err)
	}
	return c.end(ctx, tx, epoch, committer)
}
