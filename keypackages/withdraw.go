package keypackages

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/mls"
)

// Withdrawal selects the KeyPackages of one owner that match all fields that are set.
type Withdrawal struct {
	Owner    syntax.DID
	DeviceID string              // "" matches any
	Refs     []mls.KeyPackageRef // nil matches any
}

// Withdraw makes KeyPackages unusable, and returns how many it withdrew. Nobody can get a withdrawn
// KeyPackage, and no Welcome may name one, not even a Welcome of the caller who has claimed it.
// Consumed and expired KeyPackages do not count, so a repetition returns 0.
//
// A withdrawn KeyPackage is stored as an expired one with withdrawn_at set.
func Withdraw(ctx context.Context, tx pgx.Tx, w Withdrawal) (int64, error) {
	var refs [][]byte
	if w.Refs != nil {
		refs = [][]byte{}
	}
	for _, ref := range w.Refs {
		refs = append(refs, ref)
	}
	tag, err := tx.Exec(ctx, `
		UPDATE key_packages
		SET state = 'expired', withdrawn_at = clock_timestamp(), not_after = least(not_after, clock_timestamp())
		WHERE (did, ref) IN (
			SELECT did, ref FROM key_packages
			WHERE did = $1 AND ($2 = '' OR device_id = $2) AND ($3::bytea[] IS NULL OR ref = ANY($3))
				AND state IN ('available', 'claimed', 'orphaned')
			ORDER BY did, ref FOR UPDATE)`, w.Owner, w.DeviceID, refs)
	return tag.RowsAffected(), errs.Wrap(err, "withdraw KeyPackages")
}
