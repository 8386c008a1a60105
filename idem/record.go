package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// state of a record. A record of class T is completed from the moment that anybody else can see it.
type state string

const (
	processing state = "processing" // somebody holds it, by a lease
	completed  state = "completed"  // its answer stands
	released   state = "released"   // an attempt came to nothing; the next may begin at once
)

// record is one row of idempotency_keys: the write that a key stands for, and its answer.
type record struct {
	requestHash []byte
	fieldHashes map[string]string
	response    []byte
	createdAt   time.Time
	state       state
	outcome     Outcome
	startedAt   *time.Time    // of class X
	left        time.Duration // of its lease
	fence       int64
}

// appRole is the account that transactions of callers run under where the server's own passes by row-level security.
const appRole = "mlsd_app"

// asCaller has row-level security show a transaction the records of the caller $1 alone, and the audit log name it, and the method $2.
const asCaller = `
	SELECT set_config('mlsd.caller', $1, true), set_config('mlsd.reason', $2, true),
		set_config('role', coalesce((SELECT rolname FROM pg_roles WHERE rolname = '` + appRole + `' AND pg_has_role(oid, 'MEMBER')), 'none'), true)`

// reserve inserts the record, still without its answer, and reports whether the key was free. The unique index makes a
// concurrent request with the same key wait here, at most the session's lock_timeout.
func reserve(ctx context.Context, tx pgx.Tx, req Request) (bool, error) {
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp(), clock_timestamp() + $7::interval)
		ON CONFLICT DO NOTHING`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), operationOf(req.NSID).life)
	return err == nil && tag.RowsAffected() == 1, err
}

// reclaim takes over a record whose lifetime is over, and reports whether it was.
func reclaim(ctx context.Context, tx pgx.Tx, req Request) (bool, error) {
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		UPDATE idempotency_keys
		SET request_hash = $5, field_hashes = $6, response = '', created_at = clock_timestamp(), completed_at = NULL,
			expires_at = clock_timestamp() + $7::interval
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND state = 'completed' AND expires_at <= clock_timestamp()`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), operationOf(req.NSID).life)
	return err == nil && tag.RowsAffected() == 1, err
}

// complete has the answer of the reserved record filled in, in the round trip of the COMMIT.
func complete(tx *transaction, req Request, response []byte) {
	tx.ExecLast(`
		UPDATE idempotency_keys SET response = $5, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)`,
		req.Caller, req.NSID, req.Scope, req.Key, response)
}

// lookup reads a committed record that is still alive. It must be a statement of its own: the one that ran into the unique index
// saw a snapshot from before the winner's commit. The error is pgx.ErrNoRows if there is none.
func lookup(ctx context.Context, q pgpool.Queryer, req Request) (r record, err error) {
	var left *time.Duration
	err = q.QueryRow(ctx, `
		SELECT request_hash, field_hashes, response, created_at, state, outcome, started_at, lease_expires_at - clock_timestamp(), fence
		FROM idempotency_keys
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND expires_at > clock_timestamp()`,
		req.Caller, req.NSID, req.Scope, req.Key).
		Scan(&r.requestHash, &r.fieldHashes, &r.response, &r.createdAt, &r.state, &r.outcome, &r.startedAt, &left, &r.fence)
	if left != nil {
		r.left = max(*left, 0)
	}
	return r, err
}
