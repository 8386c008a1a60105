package consent

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes up to limit blocks that a person made or that concern it, and its policies. It
// returns how many rows it has deleted; 0: none is left.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH own AS (
			DELETE FROM blocks WHERE (did, blocked_did) IN (SELECT did, blocked_did FROM blocks WHERE did = $1 LIMIT $2)
				RETURNING did
		), others AS (
			DELETE FROM blocks WHERE (did, blocked_did) IN (SELECT did, blocked_did FROM blocks WHERE blocked_did = $1 LIMIT $2)
				RETURNING did
		), policy AS (
			DELETE FROM policies WHERE did = $1 RETURNING did
		)
		SELECT (SELECT count(*) FROM own) + (SELECT count(*) FROM others) + (SELECT count(*) FROM policy)`,
		p.DID, limit).Scan(&n)
	return n, errs.Wrap(err, "erase blocks")
}
