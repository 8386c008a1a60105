package idem

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// keepExpired is how long a record stays after its lifetime. During this time a late retry
	// learns that its key has expired.
	keepExpired = 24 * time.Hour
	// keepAudit is how long a row of the audit log stays.
	keepAudit = 90 * 24 * time.Hour
	// cleanBatch bounds the rows of one transaction. It holds locks of the convos whose keys it
	// retires.
	cleanBatch = 100
)

// Cleaner removes records whose lifetime is over, and old rows of the audit log. One node at a time
// cleans a database.
type Cleaner struct {
	db     *pgxpool.Pool
	retire Retire
}

// NewCleaner returns a cleaner. retire can be nil.
func NewCleaner(db *pgxpool.Pool, retire Retire) *Cleaner {
	if retire == nil {
		retire = noRows
	}
	return &Cleaner{db: db, retire: retire}
}

// Cleaned counts what one round removed.
type Cleaned struct{ Records, Audit int64 }

// RunOnce removes everything that is due, in batches. Each batch is a transaction. If another node
// is cleaning, it does nothing.
func (c *Cleaner) RunOnce(ctx context.Context) (total Cleaned, err error) {
	for {
		var done Cleaned
		err := pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) (err error) {
			done, err = c.clean(ctx, tx)
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

// clean removes one batch, and retires the keys of its records. The audit log gets one row for each
// method, with the number of its removed records.
func (c *Cleaner) clean(ctx context.Context, tx pgx.Tx) (done Cleaned, err error) {
	var mine bool
	err = tx.QueryRow(ctx, `
		SELECT pg_try_advisory_xact_lock(hashtextextended('mlsd.cleaner', 0))
		FROM set_config('mlsd.maintenance', 'on', true)`).Scan(&mine)
	if err != nil || !mine {
		return done, err
	}
	rows, err := tx.Query(ctx, `
		WITH gone AS (
			DELETE FROM idempotency_keys
			WHERE (caller_did, nsid, scope, key) IN (
				SELECT caller_did, nsid, scope, key FROM idempotency_keys
				WHERE expires_at <= clock_timestamp() - $1::interval
					AND (state <> 'processing' OR lease_expires_at <= clock_timestamp())
				ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
			RETURNING caller_did, nsid, scope, key
		), audited AS (
			INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
			SELECT 'record', nsid, 'mlsd', 'expired', 'removed', 'lifetime over', count(*) FROM gone GROUP BY nsid
		)
		SELECT caller_did, nsid, scope, key FROM gone`, keepExpired, cleanBatch)
	if err != nil {
		return done, err
	}
	ended, err := pgx.CollectRows(rows, pgx.RowToStructByPos[UsedKey])
	if err != nil {
		return done, err
	}
	done.Records = int64(len(ended))
	if err := c.retire(ctx, tx, ended); err != nil {
		return done, fmt.Errorf("retire keys: %w", err)
	}
	tag, err := tx.Exec(ctx, `
		DELETE FROM audit_log
		WHERE (at, id) IN (SELECT at, id FROM audit_log WHERE at <= clock_timestamp() - $1::interval ORDER BY at LIMIT $2)`,
		keepAudit, cleanBatch)
	done.Audit = tag.RowsAffected()
	return done, err
}
