package quota

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes the counts of a person, and returns how many there were. Nodes can write counts that
// they still have in memory for up to a minute after the person's last request. The transaction must
// be one of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM quota_counts WHERE subject = $1`, p.DID)
	return tag.RowsAffected(), errs.Wrap(err, "erase counts of quotas")
}
