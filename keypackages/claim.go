package keypackages

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
)

// Claim claims one KeyPackage of each device of each DID. A one-time KeyPackage goes to one caller
// only: concurrent claims pass over each other's rows (SKIP LOCKED), and a claimed row never
// becomes available again. The caller gets the last-resort KeyPackage of a device that has no
// one-time KeyPackage left, or whose Budget the caller has used up. Last-resort rows are read
// without a lock, so a locked row is still served. Expired KeyPackages are never served.
func Claim(ctx context.Context, tx pgx.Tx, r ClaimRequest) (ClaimResult, error) {
	var claimed claimedRows
	var batch pgx.Batch
	batch.Queue(lockCaller, r.Caller)
	claimed.queue(&batch, r)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return ClaimResult{}, fmt.Errorf("claim KeyPackages: %w", err)
	}
	if err := raiseSignals(ctx, tx, claimed.served); err != nil {
		return ClaimResult{}, fmt.Errorf("signal a claim: %w", err)
	}
	return claimed.inOrder(r.DIDs), nil
}

// lockCaller makes the claims of one caller run one after the other, on all nodes: a claim must see
// what the one before it took from the budget. It is one lock, not one for each DID asked for: a
// few large claims at once would fill the lock table of PostgreSQL.
const lockCaller = `SELECT pg_advisory_xact_lock(hashtextextended('key_package_claims:' || $1::text, 0))`

// Bounds of one answer.
const (
	// maxDevices is how many devices of one DID are served: those that published last. One-time
	// and last-resort KeyPackages are bounded separately.
	maxDevices = 20
	// maxClaimed is how many KeyPackages are served in all. Each DID gets one before any DID gets
	// two.
	maxClaimed = 500
)

// claimSQL claims the KeyPackages. It needs lockCaller before it.
//
//go:embed claim.sql
var claimSQL string

// Kinds of rows of claimSQL. The others are one-time KeyPackages.
const (
	rowLimited    = "limited" // no KeyPackage: the caller has used up its Budget of this device
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
	batch.Queue(claimSQL, r.DIDs, int32(r.CipherSuite), r.Caller, r.ConvoID, claimLifetime,
		maxClaimed, maxDevices, Budget, budgetPeriod, Threshold+thresholdMargin).Query(c.scan)
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
