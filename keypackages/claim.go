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

// Claim claims one KeyPackage of each device of each DID. A one-time KeyPackage goes to one caller
// only: concurrent claims pass over each other's rows (SKIP LOCKED), and a claimed row never
// becomes available again. The caller gets the last-resort KeyPackage of a device that has no
// one-time KeyPackage left, or whose Budget or OutsidersBudget is used up. Last-resort rows are read
// without a lock, so a locked row is still served. Expired KeyPackages are never served. A person
// that refuses the caller has none for it. Error besides the database's: *consent.BlockedError.
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

// ClaimedBefore reads KeyPackages that were claimed before, in the order of ids, as Claim returned
// them. They stay for KeepEnded after the claim. Error besides the database's: ErrNotFound, if one
// of them is not there any more.
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

// Bounds of one answer.
const (
	// maxDevices is how many devices of one DID are served: those that published last. One-time
	// and last-resort KeyPackages are bounded separately.
	maxDevices = 20
	// maxClaimed is how many KeyPackages are served in all. Each DID gets one before any DID gets
	// two.
	maxClaimed = 500
)

// MaxClaimed is how many KeyPackages a claim of so many DIDs serves at most.
func MaxClaimed(dids int) int { return min(dids*maxDevices, maxClaimed) }

// claimSQL claims the KeyPackages. It needs pgpool.LockClaims before it.
//
//go:embed claim.sql
var claimSQL string

// Kinds of rows of claimSQL. The others are one-time KeyPackages.
const (
	rowLimited    = "limited" // no KeyPackage: a budget of this device is used up
	rowLastResort = "last-resort"
)

// served is a KeyPackage that goes to the caller, and the signal that it calls for.
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
	batch.Queue(claimSQL, r.claimable(), int32(r.CipherSuite), r.Caller, ClaimLifetime,
		maxClaimed, maxDevices, Budget, budgetPeriod, Threshold+thresholdMargin, OutsidersBudget,
		consent.NewestConvos).Query(c.scan)
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

// inOrder returns what was claimed in the order of the DIDs asked for.
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
