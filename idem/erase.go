package idem

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// Erase deletes up to limit records of an account, and returns how many it deleted. The transaction
// must be one of maintenance. Records of writes on a convo must have been deleted before: see
// Forget.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM idempotency_keys
		WHERE (caller_did, nsid, scope, key) IN (
			SELECT caller_did, nsid, scope, key FROM idempotency_keys
			WHERE caller_did = $1 ORDER BY caller_did, nsid, scope, key LIMIT $2 FOR UPDATE)`, p.DID, limit)
	return tag.RowsAffected(), errs.Wrap(err, "erase records")
}

// EraseAnswers puts the tombstone of a person into the recorded answers to other callers, in a part
// of the table. A retry then gets the first answer with the tombstone in place of the name. The
// transaction must be one of maintenance.
func EraseAnswers(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE idempotency_keys
		SET response = convert_to(regexp_replace(convert_from(response, 'UTF8'), $4, $5, 'g'), 'UTF8'),
			scope = regexp_replace(scope, $4, $5, 'g'), last_error = regexp_replace(last_error, $4, $5, 'g')
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (position(convert_to($3, 'UTF8') IN response) > 0 AND convert_from(response, 'UTF8') ~ $4
				OR strpos(scope, $3) > 0 AND scope ~ $4 OR strpos(last_error, $3) > 0 AND last_error ~ $4)`,
		b.From, b.To, p.DID.String(), p.Pattern(), p.Anywhere())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from answers")
}

// EraseAudit puts the tombstone of a person into a part of the audit log.
func EraseAudit(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE audit_log
		SET actor = regexp_replace(actor, $4, $5, 'g'), entity_id = regexp_replace(entity_id, $4, $5, 'g'),
			reason = regexp_replace(reason, $4, $5, 'g'), details = regexp_replace(details, $4, $5, 'g')
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (actor = $3 OR strpos(actor, $3) > 0 AND actor ~ $4 OR strpos(entity_id, $3) > 0 AND entity_id ~ $4
				OR strpos(reason, $3) > 0 AND reason ~ $4 OR strpos(details, $3) > 0 AND details ~ $4)`,
		b.From, b.To, p.DID.String(), p.Pattern(), p.Anywhere())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from the audit log")
}
