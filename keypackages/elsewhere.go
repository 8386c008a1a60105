package keypackages

import (
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// UsedElsewhere is a KeyPackage of this service that a Welcome of another service names.
type UsedElsewhere struct {
	LastResort bool
	consumed   bool
	claimedBy  syntax.DID // "" means that nobody has claimed it
}

// LockElsewhere locks the KeyPackage that a Welcome of another service names. Errors: ErrNotFound,
// errors of the database.
func LockElsewhere(ctx context.Context, tx pgx.Tx, r Recipient, suite mls.CipherSuite) (u UsedElsewhere, err error) {
	err = tx.QueryRow(ctx, `
		SELECT last_resort, state = 'consumed', coalesce(claimed_by, '') FROM key_packages
		WHERE did = $1 AND ref = $2 AND device_id = $3 AND cipher_suite = $4 FOR UPDATE`,
		r.DID, []byte(r.Ref), r.DeviceID, int32(suite)).Scan(&u.LastResort, &u.consumed, &u.claimedBy)
	if errors.Is(err, pgx.ErrNoRows) {
		return u, ErrNotFound
	}
	return u, errs.Wrap(err, "lock the KeyPackage")
}

// By returns the reason why claimer could not use the KeyPackage at another service, or "". Unlike
// at this service, claimer must have claimed the KeyPackage, because without a claim there is no
// receipt. It does not matter if the claim has lapsed since, or if the KeyPackage was withdrawn,
// because the Welcome exists already. A last-resort KeyPackage needs no claim.
func (u UsedElsewhere) By(claimer syntax.DID) (refused string) {
	switch {
	case u.LastResort:
		return ""
	case u.claimedBy != claimer:
		return "the inviter has not claimed the KeyPackage"
	case u.consumed:
		return "the KeyPackage was consumed by another Welcome"
	}
	return ""
}

// ConsumeElsewhere marks a locked KeyPackage as consumed. A withdrawn KeyPackage stays withdrawn.
func ConsumeElsewhere(ctx context.Context, tx pgx.Tx, r Recipient) error {
	_, err := tx.Exec(ctx, `
		UPDATE key_packages SET state = 'consumed', consumed_at = clock_timestamp()
		WHERE did = $1 AND ref = $2 AND NOT last_resort AND state IN ('claimed', 'orphaned')`, r.DID, []byte(r.Ref))
	return errs.Wrap(err, "consume the KeyPackage")
}

// Has reports whether a person has KeyPackages at this service that are not withdrawn.
func Has(ctx context.Context, q pgpool.Queryer, did syntax.DID) (has bool, err error) {
	rows, err := q.Query(ctx, `
		SELECT EXISTS (SELECT FROM key_packages WHERE did = $1 AND state IN ('available', 'claimed', 'consumed'))`, did)
	if err == nil {
		has, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	}
	return has, errs.Wrap(err, "look for KeyPackages of a person")
}
