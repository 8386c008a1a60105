package keypackages

import (
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/mls"
)

// UsedElsewhere is a KeyPackage of this service that a Welcome of another service names.
type UsedElsewhere struct {
	LastResort bool
	consumed   bool
	claimedBy  syntax.DID // "": nobody
}

// LockElsewhere locks the KeyPackage that a Welcome of another service names. Error besides the
// database's: ErrNotFound.
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

// By says why claimer could not use the KeyPackage elsewhere, or "". Unlike here it must have claimed
// it: without a claim it has no receipt. That the claim has lapsed since, or the KeyPackage was
// withdrawn, changes nothing: the Welcome is there. A last-resort KeyPackage is not claimed.
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

// ConsumeElsewhere marks a locked KeyPackage as consumed. One that was withdrawn stays so.
func ConsumeElsewhere(ctx context.Context, tx pgx.Tx, r Recipient) error {
	_, err := tx.Exec(ctx, `
		UPDATE key_packages SET state = 'consumed', consumed_at = clock_timestamp()
		WHERE did = $1 AND ref = $2 AND NOT last_resort AND state IN ('claimed', 'orphaned')`, r.DID, []byte(r.Ref))
	return errs.Wrap(err, "consume the KeyPackage")
}
