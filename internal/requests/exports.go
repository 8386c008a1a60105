package requests

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

// RecordExport leaves a row in the audit log: an account is about to read all that is held about it.
// It leaves one in an hour, because an export has many pages.
func RecordExport(ctx context.Context, db *pgxpool.Pool, caller syntax.DID, nsid string) error {
	_, err := db.Exec(ctx, `
		INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
		SELECT 'account', $1, $1, 'held', 'exported', $2, 0
		WHERE NOT EXISTS (
			SELECT FROM audit_log
			WHERE entity = 'account' AND entity_id = $1 AND at > clock_timestamp() - interval '1 hour'
				AND to_state = 'exported' AND reason = $2)`, caller, nsid)
	return errs.Wrap(err, "record an export")
}
