package keypackages

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Own is a KeyPackage as its owner sees it.
type Own struct {
	Ref         mls.KeyPackageRef
	DeviceID    string
	CipherSuite mls.CipherSuite
	LastResort  bool
	State       string     // state by the clock, as in Count, even if the sweeper has not stored it yet
	CreatedAt   time.Time  // whole milliseconds, like the other times
	NotAfter    time.Time  // it is not served from then on
	ClaimedAt   *time.Time // nil means that nobody has claimed it
}

// List returns at most limit KeyPackages of an owner, in the order of their refs, and whether there
// are more. If device is not "", it returns only those of the device. Their refs come after the ref
// after.
func List(ctx context.Context, q pgpool.Queryer, owner syntax.DID, device string, after mls.KeyPackageRef, limit int) (
	own []Own, more bool, err error) {
	own, err = pgpool.Collect(ctx, q, pgx.RowToStructByPos[Own], `
		SELECT ref, device_id, cipher_suite, last_resort,
			CASE
				WHEN state = 'available' AND not_after <= now THEN 'expired'
				WHEN state = 'claimed' AND claim_expires_at <= now THEN 'orphaned'
				ELSE state
			END,
			created_at, not_after, claimed_at
		FROM key_packages, (SELECT clock_timestamp() AS now) AS clock
		WHERE did = $1 AND ref > $2 AND ($3 = '' OR device_id = $3)
		ORDER BY ref LIMIT $4`, owner, append([]byte{}, after...), device, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list KeyPackages: %w", err)
	}
	if len(own) > limit {
		return own[:limit], true, nil
	}
	return own, false, nil
}
