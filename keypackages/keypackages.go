// Package keypackages is the ledger of KeyPackages (RFC 9420 §10): owners publish them, each is handed to one caller, once, and
// it is spent when a Welcome that names it is accepted. It owns the tables key_packages, key_package_init_keys and
// key_package_signals.
//
//	 publish            claim             a Welcome names it
//	────────▶ available ─────▶ claimed ────────────────────▶ consumed
//	            │   │             │ 30 minutes without one     ▲  ▲
//	            │   │             └────────▶ orphaned ─────────┘  │
//	            │   │                          its claimer's late Welcome
//	            │   └─────────────────────────────────────────────┘
//	            │        a Welcome names it, handed over by its owner
//	            └──────▶ expired
//	              its lifetime is over
//
// Nothing that was claimed is ever served again: an orphaned one is its claimer's still, and nobody else's. Last-resort
// KeyPackages are not claimed: they stay available, whatever is done with them, until they expire. Time passes for whoever looks,
// whether the Reaper has been there or not. Consumed, expired and orphaned ones are deleted after a while; of a deleted one only
// its init_key is remembered.
//
// docs/KEYPACKAGES.md says the same to clients and operators, with the budgets and signals.
package keypackages

import (
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/mls"
)

// Bounds of what one DID may have here, all devices and suites together.
const (
	MaxAvailable = 500   // that can be handed out
	MaxUnclaimed = 5_000 // that nobody has claimed or used, the expired ones that are still kept included
)

// MaxLifetime is how far ahead a publisher may set a KeyPackage's expiry.
const MaxLifetime = 90 * 24 * time.Hour

// claimLifetime is how long a claim is thought to be in use. Nothing is served again after it.
const claimLifetime = 30 * time.Minute

// A caller gets at most Budget one-time KeyPackages of one device within budgetPeriod, used or not: nobody can empty another's
// stock alone.
const (
	Budget       = 30
	budgetPeriod = 24 * time.Hour
)

// Threshold is how many one-time KeyPackages of each cipher suite that it publishes a device should have available.
const Threshold = 20

// Errors of publishing and of consumption.
var (
	ErrTooMany = fmt.Errorf("at most %d KeyPackages of an account can be available, and %d kept that nobody has claimed",
		MaxAvailable, MaxUnclaimed)
	ErrExpirationTooFar = errors.New("expires is more than 90 days ahead")
	ErrNotFound         = errors.New("no KeyPackage of the added members and the group's cipher suite has this KeyPackageRef")
)

// InvalidError says why a KeyPackage is not taken.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "invalid KeyPackage: " + e.Reason }

// SpentError says that a Welcome names a KeyPackage that is not the caller's to use.
type SpentError struct {
	Ref    mls.KeyPackageRef
	Reason string
}

func (e *SpentError) Error() string { return fmt.Sprintf("KeyPackage %s %s", e.Ref, e.Reason) }

// Claim asks for one KeyPackage for each device of each DID.
type Claim struct {
	Caller      syntax.DID
	DIDs        []syntax.DID
	CipherSuite mls.CipherSuite // 0: each device's lowest-numbered suite
	ConvoID     *uuid.UUID      // what the claim is for, if the caller says: a note, no more
}

// Taken is what a claim has brought. Each DID asked for is in Claimed or in Missing; one in Limited is in either, too.
type Taken struct {
	Claimed []Claimed
	Missing []syntax.DID // nothing to claim
	Limited []syntax.DID // of a device of theirs the caller has had its Budget
}

// Claimed is a KeyPackage handed to a caller.
type Claimed struct {
	DID         syntax.DID
	DeviceID    string
	Ref         mls.KeyPackageRef
	CipherSuite mls.CipherSuite
	Body        []byte // as it was published
	LastResort  bool
	ExpiresAt   *time.Time // of the claim; nil for a last-resort KeyPackage, which is not claimed
}

// Recipient is a device whose KeyPackage a Welcome names.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
}
