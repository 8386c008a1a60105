package archive

import (
	"context"
	_ "embed"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// Counts are what is held about an account, in numbers.
type Counts struct {
	Devices          int64      `json:"devices"` // known by a KeyPackage or a push target
	KeyPackages      int64      `json:"keyPackages"`
	Available        int64      `json:"keyPackagesAvailable"`
	KeyPackageBytes  int64      `json:"keyPackageBytes"`
	Convos           int64      `json:"convos"`        // of which it is a member
	Created          int64      `json:"convosCreated"` // of these
	PendingWelcomes  int64      `json:"pendingWelcomes"`
	PushTargets      int64      `json:"pushTargets"`
	PushJobs         int64      `json:"pushJobs"`
	Records          int64      `json:"records"` // of idempotency keys
	RecordBytes      int64      `json:"recordBytes"`
	Connected        int64      `json:"connectedDevices"`
	LastPublished    *time.Time `json:"lastKeyPackageAt,omitempty"`
	LastRecord       *time.Time `json:"lastWriteAt,omitempty"` // with a key that is still kept
	OldestMembership *time.Time `json:"oldestMembershipAt,omitempty"`
}

// countSQL counts the rows of one DID. $1 is the DID.
//
//go:embed account.sql
var countSQL string

// Count counts what is held about an account. tx sees the account's own records at least.
func Count(ctx context.Context, tx pgx.Tx, did syntax.DID) (c Counts, err error) {
	err = tx.QueryRow(ctx, countSQL, did).Scan(&c.Devices, &c.KeyPackages, &c.Available, &c.KeyPackageBytes,
		&c.LastPublished,
		&c.Convos, &c.Created, &c.OldestMembership, &c.PendingWelcomes, &c.PushTargets, &c.PushJobs,
		&c.Records, &c.RecordBytes, &c.LastRecord, &c.Connected)
	return c, errs.Wrap(err, "count what is held about an account")
}
