package idem

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

const (
	// KeepExpired is how long a record stays after its lifetime. During this time a late retry
	// learns that its key has expired.
	KeepExpired = 24 * time.Hour
	// keepAudit is how long a row of the audit log stays.
	keepAudit = 90 * 24 * time.Hour
	// sweepRecords bounds the records of one transaction, which locks the convos whose keys it
	// retires.
	sweepRecords = 100
)

// Sweeps delete records whose lifetime is over, and old rows of the audit log. retire can be nil.
func Sweeps(db *pgxpool.Pool, retire Retire) []worker.Sweep {
	if retire == nil {
		retire = noRows
	}
	return []worker.Sweep{
		{Rows: "idempotency_keys", Batch: func(ctx context.Context) (n int64, more bool, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
				n, err = deleteExpired(ctx, tx, retire)
				return err
			})
			return n, n == sweepRecords, err
		}},
		worker.Statement(db, "audit_log", `
			DELETE FROM audit_log
			WHERE (at, id) IN (SELECT at, id FROM audit_log WHERE at <= now() - $2::interval ORDER BY at LIMIT $1 FOR UPDATE SKIP
				LOCKED)`,
			keepAudit),
	}
}

// deleteExpired deletes a batch of records and retires their keys. The audit log gets one row for
// each method, with the number of deleted records. Only one node at a time may run it, because two
// nodes would lock the convos in different orders.
func deleteExpired(ctx context.Context, tx pgx.Tx, retire Retire) (int64, error) {
	if free, err := pgpool.LockRecords.Try(ctx, tx); err != nil || !free {
		return 0, err
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
		return 0, err
	}
	ended, err := pgpool.Collect(ctx, tx, pgx.RowToStructByPos[UsedKey], `
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
		SELECT caller_did, nsid, scope, key FROM gone`, KeepExpired, sweepRecords)
	if err != nil {
		return 0, err
	}
	if err := retire(ctx, tx, ended); err != nil {
		return 0, fmt.Errorf("retire keys: %w", err)
	}
	return int64(len(ended)), nil
}
