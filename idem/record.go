package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// record is one row of idempotency_keys: the write that a key stands for, and its answer.
type record struct {
	requestHash []byte
	fieldHashes map[string]string
	response    []byte
	createdAt   time.Time
}

// reserve inserts the record, still without its answer, and reports whether the key was free. The unique index makes a
// concurrent request with the same key wait here, at most the session's lock_timeout.
func reserve(ctx context.Context, tx pgx.Tx, req Request) (bool, error) {
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp())
		ON CONFLICT DO NOTHING`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes())
	return err == nil && tag.RowsAffected() == 1, err
}

// complete fills in the answer of the reserved record.
func complete(ctx context.Context, tx pgx.Tx, req Request, response []byte) error {
	_, err := tx.Exec(ctx, `
		UPDATE idempotency_keys SET response = $5
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)`,
		req.Caller, req.NSID, req.Scope, req.Key, response)
	return err
}

// lookup reads a committed record. It must be a statement of its own: the one that ran into the unique index saw a snapshot
// from before the winner's commit. The error is pgx.ErrNoRows if there is none.
func lookup(ctx context.Context, q pgpool.Queryer, req Request) (record, error) {
	var r record
	err := q.QueryRow(ctx, `
		SELECT request_hash, field_hashes, response, created_at
		FROM idempotency_keys
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)`,
		req.Caller, req.NSID, req.Scope, req.Key).
		Scan(&r.requestHash, &r.fieldHashes, &r.response, &r.createdAt)
	return r, err
}
