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

// The states of a KeyPackage:
//
//	 publish            claim             a Welcome names it
//	────────▶ available ─────▶ claimed ────────────────────▶ consumed
//	            │   │             │ 30 minutes without one     ▲  ▲
//	            │   │             └────────▶ orphaned ─────────┘  │
//	            │   │                          its claimer's late Welcome
//	            │   └─────────────────────────────────────────────┘
//	            │        a Welcome names it, handed over by its owner
//	            └──────▶ expired
//	              it has less than ServedLife left, or its owner or an operator has withdrawn it
//
// A withdrawal also ends a claimed or orphaned KeyPackage, so that a lost device gets no Welcome.
//
// A claimed KeyPackage is never served again. Once it is orphaned, only its claimer can still use
// it. Last-resort KeyPackages are not claimed: they stay available until they expire. Statements
// compare times themselves and wait for no sweep. When a KeyPackage is deleted after its end, only
// its init_key is kept.

// Bounds of the KeyPackages of one DID, all devices and suites together.
const (
	MaxAvailable = 500   // KeyPackages that can be served
	MaxUnclaimed = 5_000 // unclaimed and unused KeyPackages, including expired ones that are kept
)

// MaxLifetime is how far ahead a publisher can set the expiry of a KeyPackage.
const MaxLifetime = 90 * 24 * time.Hour

// ClaimLifetime is how long a claim lasts until it lapses. A lapsed claim does not make the
// KeyPackage available again.
const ClaimLifetime = 30 * time.Minute

// Members check a KeyPackage's lifetime when they process the commit that adds it (RFC 9420 §7.3). If
// it is over by then, they refuse the commit, and every later epoch with it.
const (
	// CommitLife is how much life a KeyPackage must have left when a commit adds it: a day, so that
	// devices that were off overnight accept the commit.
	CommitLife = 24 * time.Hour
	// ServedLife is how much life it must have left when it is published or claimed, so that a commit
	// can add it until the claim ends.
	ServedLife = CommitLife + ClaimLifetime
)

// CheckLife checks that a commit can add a KeyPackage whose lifetime ends at notAfter. Error:
// *UnusableError.
func CheckLife(ref mls.KeyPackageRef, notAfter, now time.Time) error {
	if notAfter.Sub(now) >= CommitLife {
		return nil
	}
	reason := fmt.Sprintf("has a lifetime that ends at %s; a commit adds only KeyPackages that live %d hours longer, "+
		"because members refuse others (RFC 9420 §7.3)", notAfter.UTC().Format(time.RFC3339), int(CommitLife.Hours()))
	return &UnusableError{Ref: ref, Reason: reason}
}

// A caller gets at most Budget one-time KeyPackages of one device within budgetPeriod, whether it
// uses them or not. So no caller can empty a device's stock alone.
const (
	Budget       = 30
	budgetPeriod = 24 * time.Hour
)

// OutsidersBudget is how many one-time KeyPackages of one device all outsiders together get within
// 24 hours. An outsider is a caller who shares no convo with the owner. A budget for each outsider
// would stop nobody, because DIDs cost nothing. OutsidersBudget leaves most of a full stock to
// people whom the owner knows.
const OutsidersBudget = 40

// Threshold is how many one-time KeyPackages a device should have available in each cipher suite.
// It applies to suites in which the device publishes one-time KeyPackages.
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
	CipherSuite mls.CipherSuite // 0 means each device's lowest-numbered suite
	ConvoID     *uuid.UUID      // what the claim is for; nil if unknown
	// Withheld are the DIDs among DIDs that may not use the node now. The result lists them as
	// Missing.
	Withheld []syntax.DID
}

// claimable are the DIDs whose KeyPackages can be claimed.
func (r ClaimRequest) claimable() []syntax.DID {
	if len(r.Withheld) == 0 {
		return r.DIDs
	}
	return slices.DeleteFunc(slices.Clone(r.DIDs), func(did syntax.DID) bool { return slices.Contains(r.Withheld, did) })
}

// ClaimResult is the result of a claim. Each requested DID is in Claimed or in Missing. It is also
// in Limited if the caller has used up a budget of one of its devices.
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
	ExpiresAt   *time.Time // end of the claim; nil for a last-resort KeyPackage
}

// Recipient is a device whose KeyPackage a Welcome names.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
}

// Foreign is a KeyPackage that the caller claimed at another service, and for which it has a
// receipt. The KeyPackage's owner has chosen that service.
type Foreign struct {
	Recipient
	CipherSuite mls.CipherSuite
	Service     syntax.DID
	Domain      string // registered domain of the service's host
	LastResort  bool   // any number of Welcomes can name it
}
