package keypackages

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
	"mlsd/people/consent"
)

// Claim claims one KeyPackage of each device of each DID. Only one caller gets a one-time
// KeyPackage: concurrent claims skip each other's rows (SKIP LOCKED), and a claimed row never
// becomes available again. If a device has no one-time KeyPackage left, or a Budget or
// OutsidersBudget of the device is used up, the caller gets the device's last-resort KeyPackage.
// Claim reads last-resort rows without a lock, so it serves locked rows too. It never serves
// expired KeyPackages. It serves none of a person who refuses the caller.
//
// Errors: *consent.BlockedError, errors of the database.
func Claim(ctx context.Context, tx pgx.Tx, r ClaimRequest) (ClaimResult, error) {
	refused, err := consent.Refusals(ctx, tx, r.Caller, r.DIDs, r.ConvoID)
	if err != nil {
		return ClaimResult{}, err
	}
	asked := r.DIDs
	r.DIDs = slices.DeleteFunc(slices.Clone(asked), func(did syntax.DID) bool { return slices.Contains(refused, did) })
	var claimed claimedRows
	var batch pgx.Batch
	pgpool.LockClaims.Queue(&batch, r.Caller.String())
	claimed.queue(&batch, r)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return ClaimResult{}, fmt.Errorf("claim KeyPackages: %w", err)
	}
	if err := raiseSignals(ctx, tx, claimed.served); err != nil {
		return ClaimResult{}, fmt.Errorf("signal a claim: %w", err)
	}
	return claimed.inOrder(asked), nil
}

// ID names a KeyPackage.
type ID struct {
	DID syntax.DID
	Ref mls.KeyPackageRef
}

// ClaimedBefore reads KeyPackages that were claimed before, in the order of ids, just as Claim
// returned them. They are kept for KeepEnded after the claim. Errors: ErrNotFound, if a KeyPackage
// is no longer there; errors of the database.
func ClaimedBefore(ctx context.Context, q pgpool.Queryer, ids []ID) ([]Claimed, error) {
	dids, refs := make([]syntax.DID, len(ids)), make([][]byte, len(ids))
	for i, id := range ids {
		dids[i], refs[i] = id.DID, id.Ref
	}
	rows := pgpool.Rows(ctx, q, `
		SELECT did, device_id, ref, cipher_suite, body, last_resort, claim_expires_at
		FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS id (did, ref, nth) JOIN key_packages USING (did, ref)
		ORDER BY nth`, dids, refs)
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Claimed, err error) {
		return c, row.Scan(&c.DID, &c.DeviceID, &c.Ref, &c.CipherSuite, &c.Body, &c.LastResort, &c.ExpiresAt)
	})
	if err != nil {
		return nil, fmt.Errorf("read claimed KeyPackages: %w", err)
	}
	if len(claimed) < len(ids) {
		return nil, ErrNotFound
	}
	return claimed, nil
}

// Bounds of one claim.
const (
	// maxDevices is how many devices of one DID are served: the devices that published last.
	// One-time and last-resort KeyPackages have separate bounds.
	maxDevices = 20
	// maxClaimed is how many KeyPackages are served in all. Each DID gets one before any DID gets
	// two.
	maxClaimed = 500
)

// MaxClaimed returns the most KeyPackages that a claim of so many DIDs serves.
func MaxClaimed(dids int) int { return min(dids*maxDevices, maxClaimed) }

// claimSQL claims the KeyPackages. It needs pgpool.LockClaims before it.
//
//go:embed claim.sql
var claimSQL string

// Kinds of rows of claimSQL. Rows of all other kinds are one-time KeyPackages.
const (
	rowLimited    = "limited" // no KeyPackage, because a budget of this device is used up
	rowLastResort = "last-resort"
)

// served is a KeyPackage that goes to the caller, and the signal to raise for it.
type served struct {
	Claimed
	signal string // "" for none
}

// claimedRows is the result of claimSQL.
type claimedRows struct {
	served  []served // the one-time KeyPackages first
	limited map[syntax.DID]bool
}

func (c *claimedRows) queue(batch *pgx.Batch, r ClaimRequest) {
	batch.Queue(claimSQL, pgx.NamedArgs{
		"dids": r.claimable(), "suite": int32(r.CipherSuite), "caller": r.Caller, "lifetime": ClaimLifetime,
		"most": maxClaimed, "devices": maxDevices, "budget": Budget, "period": budgetPeriod,
		"few": Threshold + thresholdMargin, "outsiders": OutsidersBudget, "newest": consent.NewestConvos,
	}).Query(c.scan)
}

func (c *claimedRows) scan(rows pgx.Rows) error {
	c.limited = map[syntax.DID]bool{}
	for rows.Next() {
		var s served
		var kind string
		err := rows.Scan(&kind, &s.DID, &s.DeviceID, &s.Ref, &s.CipherSuite, &s.Body, &s.ExpiresAt, &s.signal)
		if err != nil {
			return err
		}
		if kind == rowLimited {
			c.limited[s.DID] = true
			continue
		}
		s.LastResort = kind == rowLastResort
		c.served = append(c.served, s)
	}
	return rows.Err()
}

// inOrder returns the claimed KeyPackages in the order of the given DIDs.
func (c *claimedRows) inOrder(dids []syntax.DID) (out ClaimResult) {
	byDID := map[syntax.DID][]Claimed{}
	for _, s := range c.served {
		byDID[s.DID] = append(byDID[s.DID], s.Claimed)
	}
	seen := map[syntax.DID]bool{}
	for _, did := range dids {
		if seen[did] {
			continue
		}
		seen[did] = true
		if len(byDID[did]) == 0 {
			out.Missing = append(out.Missing, did)
		}
		if c.limited[did] {
			out.Limited = append(out.Limited, did)
		}
		out.Claimed = append(out.Claimed, byDID[did]...)
	}
	return out
}
