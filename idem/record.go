package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// state is the state of a record. A record of [Store.Do] is completed as soon as others can see it.
type state string

const (
	processing state = "processing" // an attempt has a lease on the record
	completed  state = "completed"  // the record has its answer
	released   state = "released"   // an attempt ended without an outcome; the next attempt can begin at once
)

// record is one row of idempotency_keys: the write that a key stands for, and the answer to it.
type record struct {
	requestHash []byte
	fieldHashes map[string]string
	response    []byte
	createdAt   time.Time
	expiresAt   time.Time
	state       state
	outcome     Outcome
	startedAt   *time.Time    // when the work outside the database began
	left        time.Duration // time left of the lease
	fence       int64
}

// asCaller restricts a transaction to the records of the caller $1, by row-level security. It also
// sets the caller and the method $2 for the audit log. If the role mlsd_app exists and the server
// may take this role, the transaction runs under it, because the server's own role may bypass
// row-level security.
const asCaller = `
	SELECT set_config('mlsd.caller', $1, true), set_config('mlsd.reason', $2, true),
		set_config('role', CASE WHEN pg_has_role(to_regrole('mlsd_app'), 'MEMBER') THEN 'mlsd_app' ELSE 'none' END, true)`

// reserve inserts the record without its answer, and reports whether the key was free. The unique
// index makes a concurrent request with the same key wait here, at most for the session's
// lock_timeout.
func reserve(ctx context.Context, tx pgx.Tx, req Request) (bool, error) {
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp(), clock_timestamp() + $7::interval)
		ON CONFLICT DO NOTHING`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), req.life())
	return err == nil && tag.RowsAffected() == 1, err
}

// reclaim takes over the key's record if the record's lifetime is over, and reports whether it did.
// The audit log gets a row. If the new request rolls back, the row is rolled back too.
func reclaim(ctx context.Context, tx pgx.Tx, req Request) (bool, error) {
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		WITH reused AS (
			UPDATE idempotency_keys
			SET request_hash = $5, field_hashes = $6, response = '', created_at = clock_timestamp(), completed_at = NULL,
				expires_at = clock_timestamp() + $7::interval
			WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND state = 'completed' AND expires_at <= clock_timestamp()
			RETURNING caller_did, nsid, key, fence
		)
		INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
		SELECT 'record', nsid || ' ' || key, caller_did, 'expired', 'reused', current_setting('mlsd.reason'), fence FROM
			reused`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), req.life())
	return err == nil && tag.RowsAffected() == 1, err
}

// complete stores the answer in the reserved record, in the round trip of the COMMIT.
func complete(tx *pgpool.Transaction, req Request, response []byte) {
	tx.ExecLast(`
		UPDATE idempotency_keys SET response = $5, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)`,
		req.Caller, req.NSID, req.Scope, req.Key, response)
}

// lookup reads a committed record whose lifetime is not over. It must be a statement of its own,
// because the INSERT that failed on the unique index had an older snapshot than the other request's
// COMMIT. The error is pgx.ErrNoRows if there is no such record.
func lookup(ctx context.Context, q pgpool.Queryer, req Request) (r record, err error) {
	var left *time.Duration
	err = q.QueryRow(ctx, `
		SELECT request_hash, field_hashes, response, created_at, expires_at, state, outcome, started_at,
			lease_expires_at - clock_timestamp(), fence
		FROM idempotency_keys
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND expires_at > clock_timestamp()`,
		req.Caller, req.NSID, req.Scope, req.Key).
		Scan(&r.requestHash, &r.fieldHashes, &r.response, &r.createdAt, &r.expiresAt, &r.state, &r.outcome, &r.startedAt,
			&left, &r.fence)
	if left != nil {
		r.left = max(*left, 0)
	}
	return r, err
}
