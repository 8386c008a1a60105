package keypackages

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Consume marks the KeyPackages that a Welcome names as consumed, and returns the devices that they
// belong to. caller made the Welcome, owners are the DIDs that it can be for, and suite is the
// group's suite. An unclaimed KeyPackage can be used, because its owner may have sent it to the
// caller directly. A KeyPackage that the caller claimed can be used even after the claim has lapsed,
// or the time set by its publisher is over, but not without CommitLife. KeyPackages of other
// services must be in foreign. Consume returns them as used, and the caller records their use.
// Errors: ErrNotFound, *UnusableError.
func Consume(ctx context.Context, tx pgx.Tx, caller syntax.DID, owners []syntax.DID, suite mls.CipherSuite,
	refs []mls.KeyPackageRef, foreign []Foreign) (recipients []Recipient, used []Foreign, err error) {
	raw := make([][]byte, len(refs))
	for i, ref := range refs {
		raw[i] = ref
	}
	recipients, err = pgpool.Collect(ctx, tx, scanRecipient, `
		SELECT did, ref, device_id, state = 'consumed', state IN ('claimed', 'orphaned') AND claimed_by <> $3,
			state = 'expired' OR state = 'available' AND not_after <= clock_timestamp(), withdrawn_at IS NOT NULL,
			body, clock_timestamp()
		FROM key_packages WHERE did = ANY($1) AND ref = ANY($2) AND cipher_suite = $4
		ORDER BY did, ref FOR UPDATE`, owners, raw, caller, int32(suite))
	if err != nil {
		return nil, nil, fmt.Errorf("lock the KeyPackages: %w", err)
	}
	if len(recipients) < len(refs) {
		if used, err = elsewhere(recipients, owners, suite, refs, foreign); err != nil {
			return nil, nil, err
		}
		for _, f := range used {
			recipients = append(recipients, f.Recipient)
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE key_packages SET state = 'consumed', consumed_at = clock_timestamp(), claimed_by = coalesce(claimed_by, $3)
		WHERE did = ANY($1) AND ref = ANY($2) AND NOT last_resort`, owners, raw, caller)
	return recipients, used, errs.Wrap(err, "consume the KeyPackages")
}

// elsewhere returns the KeyPackages of foreign that refs names and that are not here. Error:
// ErrNotFound.
func elsewhere(here []Recipient, owners []syntax.DID, suite mls.CipherSuite, refs []mls.KeyPackageRef,
	foreign []Foreign) (used []Foreign, err error) {
	for _, ref := range refs {
		if slices.ContainsFunc(here, func(r Recipient) bool { return bytes.Equal(r.Ref, ref) }) {
			continue
		}
		at := slices.IndexFunc(foreign, func(f Foreign) bool {
			return bytes.Equal(f.Ref, ref) && f.CipherSuite == suite && slices.Contains(owners, f.DID)
		})
		if at < 0 {
			return nil, ErrNotFound
		}
		used = append(used, foreign[at])
	}
	return used, nil
}

// scanRecipient reads a locked KeyPackage, and refuses one that the caller cannot use.
func scanRecipient(row pgx.CollectableRow) (r Recipient, err error) {
	var consumed, foreign, expired, withdrawn bool
	var body []byte
	var now time.Time
	err = row.Scan(&r.DID, &r.Ref, &r.DeviceID, &consumed, &foreign, &expired, &withdrawn, &body, &now)
	if err != nil {
		return r, err
	}
	switch {
	case consumed:
		return r, &UnusableError{Ref: r.Ref, Reason: "has been consumed by another Welcome"}
	case foreign:
		return r, &UnusableError{Ref: r.Ref, Reason: "is claimed by another caller"}
	case withdrawn:
		return r, &UnusableError{Ref: r.Ref, Reason: "has been withdrawn"}
	case expired:
		return r, &UnusableError{Ref: r.Ref, Reason: "has expired"}
	}
	kp, err := mls.ParseKeyPackage(body)
	if err != nil {
		return r, fmt.Errorf("a KeyPackage in the ledger: %w", err)
	}
	return r, CheckLife(r.Ref, kp.NotAfter, now)
}
