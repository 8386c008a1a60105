package requests

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

const (
	// maxRows bounds the table, whatever Config.Keep says: the newest are kept.
	maxRows = 1_000_000
	// sweepBatch is how many rows one transaction of Sweep deletes.
	sweepBatch = 5000
)

// Sweep deletes the rows that are too old, or too many. Each batch is a transaction.
func (r *Recorder) Sweep(ctx context.Context) error {
	for {
		swept, err := r.sweep(ctx)
		if err != nil {
			return fmt.Errorf("delete old requests: %w", err)
		}
		if swept < sweepBatch {
			return nil
		}
	}
}

// sweep deletes one batch. Ids are in the order of time, but for the interval of the writers. One node
// at a time deletes.
func (r *Recorder) sweep(ctx context.Context) (int64, error) {
	var tag pgconn.CommandTag
	err := pgx.BeginFunc(ctx, r.cfg.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT set_config('mlsd.maintenance', 'on', true), pg_advisory_xact_lock(hashtextextended('mlsd.requests', 0))`)
		if err != nil {
			return err
		}
		tag, err = tx.Exec(ctx, `
			DELETE FROM requests
			WHERE id IN (SELECT id FROM requests ORDER BY id LIMIT $1)
				AND (at < now() - $2::interval OR id <= (SELECT max(id) FROM requests) - $3)`, sweepBatch, r.cfg.Keep, maxRows)
		return err
	})
	return tag.RowsAffected(), err
}

// Erase deletes, in a part of the table, the requests of an account, and those of others whose row
// names it. The transaction must be one of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM requests
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (caller_did = $3 OR strpos(message, $3) > 0 OR strpos(key, $3) > 0 OR strpos(request_id, $3) > 0 OR strpos(detail::text, $3) > 0)`,
		b.From, b.To, p.DID.String())
	if err != nil {
		return 0, fmt.Errorf("erase requests: %w", err)
	}
	return tag.RowsAffected(), nil
}
