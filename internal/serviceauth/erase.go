package serviceauth

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes the row of an account's key. The key must have been forgotten a minute before, so
// that every node has read this.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM identity_keys WHERE did = $1`, p.DID)
	return tag.RowsAffected(), errs.Wrap(err, "serviceauth: erase a key")
}
