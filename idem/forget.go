package idem

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// Forget deletes the records of callers' writes on a convo, and returns how many it deleted. scope
// names the convo. The transaction must be one of maintenance, and must not hold the convo's lock
// yet, because writes lock their record first.
func Forget(ctx context.Context, tx pgx.Tx, callers []syntax.DID, scope string) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM idempotency_keys
		WHERE (caller_did, nsid, scope, key) IN (
			SELECT caller_did, nsid, scope, key FROM idempotency_keys
			WHERE caller_did = ANY($1) AND scope = $2
			ORDER BY caller_did, nsid, scope, key FOR UPDATE)`, callers, scope)
	return tag.RowsAffected(), errs.Wrap(err, "forget the records of a convo")
}

// ForgetKey deletes the record of one key of a method that names no convo. As for Forget, the
// transaction must be one of maintenance.
func ForgetKey(ctx context.Context, tx pgx.Tx, caller syntax.DID, nsid, key string) error {
	_, err := tx.Exec(ctx, `DELETE FROM idempotency_keys WHERE (caller_did, nsid, scope, key) = ($1, $2, '', $3)`, caller,
		nsid, key)
	return errs.Wrap(err, "forget the record of a key")
}
