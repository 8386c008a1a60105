package idem

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// keepExpired is how long a record stays after its lifetime, so that a late repetition can be told that it comes too late.
	keepExpired = 24 * time.Hour
	// keepAudit is how long the audit log reaches back.
	keepAudit = 90 * 24 * time.Hour
	// cleanBatch bounds the rows of one transaction.
	cleanBatch = 1000
)

// Cleaner removes records whose lifetime is over and old rows of the audit log. Of all nodes on a database one cleans at a time.
type Cleaner struct {
	db  *pgxpool.Pool
	log *slog.Logger
}

// NewCleaner returns a cleaner.
func NewCleaner(db *pgxpool.Pool, log *slog.Logger) *Cleaner { return &Cleaner{db: db, log: log} }

// Run cleans every interval until ctx ends.
func (c *Cleaner) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if _, err := c.RunOnce(ctx); err != nil && ctx.Err() == nil {
			c.log.ErrorContext(ctx, "expired idempotency records could not be removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Cleaned counts what one round removed.
type Cleaned struct{ Records, Audit int64 }

// RunOnce removes everything that is due, in batches, each a transaction. If another node is cleaning there is nothing to do.
func (c *Cleaner) RunOnce(ctx context.Context) (total Cleaned, err error) {
	for {
		var done Cleaned
		err := pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) (err error) {
			done, err = clean(ctx, tx)
			return err
		})
		if err != nil {
			return total, fmt.Errorf("clean up: %w", err)
		}
		total.Records += done.Records
		total.Audit += done.Audit
		if done.Records < cleanBatch && done.Audit < cleanBatch {
			return total, nil
		}
	}
}

// clean works one batch. What it removes of the records is a line of the audit log.
func clean(ctx context.Context, tx pgx.Tx) (done Cleaned, err error) {
	var mine bool
	err = tx.QueryRow(ctx, `
		SELECT pg_try_advisory_xact_lock(hashtextextended('mlsd.cleaner', 0))
		FROM set_config('mlsd.maintenance', 'on', true)`).Scan(&mine)
	if err != nil || !mine {
		return done, err
	}
	err = tx.QueryRow(ctx, `
		WITH gone AS (
			DELETE FROM idempotency_keys
			WHERE (caller_did, nsid, scope, key) IN (
				SELECT caller_did, nsid, scope, key FROM idempotency_keys
				WHERE expires_at <= clock_timestamp() - $1::interval
					AND (state <> 'processing' OR lease_expires_at <= clock_timestamp())
				ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
			RETURNING nsid
		), noted AS (
			INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
			SELECT 'record', nsid, 'mlsd', 'expired', 'removed', 'lifetime over', count(*) FROM gone GROUP BY nsid
		)
		SELECT count(*) FROM gone`, keepExpired, cleanBatch).Scan(&done.Records)
	if err != nil {
		return done, err
	}
	tag, err := tx.Exec(ctx, `
		DELETE FROM audit_log
		WHERE (at, id) IN (SELECT at, id FROM audit_log WHERE at <= clock_timestamp() - $1::interval ORDER BY at LIMIT $2)`,
		keepAudit, cleanBatch)
	done.Audit = tag.RowsAffected()
	return done, err
}
