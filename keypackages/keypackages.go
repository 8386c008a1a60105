// Package keypackages is the ledger of KeyPackages (RFC 9420 §10). Owners publish them. Each goes
// to one caller, once. It is consumed when a Welcome that names it is accepted. The package owns
// the tables key_packages, key_package_init_keys and key_package_signals.
//
//	 publish            claim             a Welcome names it
//	────────▶ available ─────▶ claimed ────────────────────▶ consumed
//	            │   │             │ 30 minutes without one     ▲  ▲
//	            │   │             └────────▶ orphaned ─────────┘  │
//	            │   │                          its claimer's late Welcome
//	            │   └─────────────────────────────────────────────┘
//	            │        a Welcome names it, handed over by its owner
//	            └──────▶ expired
//	              its lifetime is over, or its owner or an operator has withdrawn it
//
// A withdrawal ends a claimed or orphaned KeyPackage too, so that a lost device gets no Welcome.
//
// A claimed KeyPackage is never served again; once orphaned, only its claimer can still use it.
// Last-resort KeyPackages are not claimed: they stay available until they expire. Statements
// compare times themselves and wait for no sweep. Of a KeyPackage that was deleted after its end
// only the init_key is kept.
//
// docs/KEYPACKAGES.md tells clients and operators the same, with the budgets and signals.
package keypackages

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/mls"
)

// Bounds of the KeyPackages of one DID, all devices and suites together.
const (
	MaxAvailable = 500   // KeyPackages that can be served
	MaxUnclaimed = 5_000 // unclaimed and unused KeyPackages, also expired ones that are kept
)

// MaxLifetime is how far ahead a publisher can set the expiry of a KeyPackage.
const MaxLifetime = 90 * 24 * time.Hour

// ClaimLifetime is how long a claim lasts until it lapses. A lapsed claim does not make the
// KeyPackage available again.
const ClaimLifetime = 30 * time.Minute

// A caller gets at most Budget one-time KeyPackages of one device within budgetPeriod, used or not.
// So no caller can empty a device's stock alone.
const (
	Budget       = 30
	budgetPeriod = 24 * time.Hour
)

// OutsidersBudget is how many one-time KeyPackages of one device all callers who share no convo with
// its owner get together within 24 hours: DIDs cost nothing, so a budget for each would stop nobody.
// It leaves most of a full stock to people whom the owner knows.
const OutsidersBudget = 40

// Threshold is how many one-time KeyPackages a device should have available in each cipher suite in
// which it publishes them.
const Threshold = 20

// Errors of publishing and of consumption.
var (
	ErrTooMany = fmt.Errorf("at most %d KeyPackages of an account can be available, and at most %d unclaimed ones are "+
		"kept",
		MaxAvailable, MaxUnclaimed)
	ErrExpirationTooFar = errors.New("expires is more than 90 days ahead")
	ErrNotFound         = errors.New("no KeyPackage of the added members and the group's cipher suite has this " +
		"KeyPackageRef; claim them with getKeyPackages")
)

// InvalidError says why a KeyPackage cannot be published.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "invalid KeyPackage: " + e.Reason }

// UnusableError says that a Welcome names a KeyPackage that its sender cannot use.
type UnusableError struct {
	Ref    mls.KeyPackageRef
	Reason string
}

func (e *UnusableError) Error() string {
	return fmt.Sprintf("KeyPackage %s %s; claim another with getKeyPackages", e.Ref, e.Reason)
}

// ClaimRequest asks for one KeyPackage for each device of each DID.
type ClaimRequest struct {
	Caller      syntax.DID
	DIDs        []syntax.DID
	CipherSuite mls.CipherSuite // 0: each device's lowest-numbered suite
	ConvoID     *uuid.UUID      // what the claim is for; nil if unknown
	// Withheld are those of DIDs that may not use the node now. They are answered as Missing.
	Withheld []syntax.DID
}

// claimable are the DIDs whose KeyPackages can be claimed.
func (r ClaimRequest) claimable() []syntax.DID {
	if len(r.Withheld) == 0 {
		return r.DIDs
	}
	return slices.DeleteFunc(slices.Clone(r.DIDs), func(did syntax.DID) bool { return slices.Contains(r.Withheld, did) })
}

// ClaimResult is the result of a claim. Each DID asked for is in Claimed or in Missing; in Limited
// as well, if the caller has used up a budget of one of its devices.
type ClaimResult struct {
	Claimed []Claimed
	Missing []syntax.DID // DIDs that have nothing to claim
	Limited []syntax.DID
}

// Claimed is a KeyPackage handed to a caller.
type Claimed struct {
	DID         syntax.DID
	DeviceID    string
	Ref         mls.KeyPackageRef
	CipherSuite mls.CipherSuite
	Body        []byte // as published
	LastResort  bool
	ExpiresAt   *time.Time // of the claim; nil for a last-resort KeyPackage
}

// Recipient is a device whose KeyPackage a Welcome names.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
}

// Foreign is a KeyPackage that the caller claimed at another service, of which it has a receipt. Its
// owner has chosen that service.
type Foreign struct {
	Recipient
	CipherSuite mls.CipherSuite
	Service     syntax.DID
	LastResort  bool // any number of Welcomes can name it
}
