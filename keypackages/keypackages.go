// Package keypackages is the directory of KeyPackages (RFC 9420 §10): owners publish them, each is handed to one caller,
// once, and it is spent when a Welcome that names it is accepted. It owns the tables key_packages and
// key_package_init_keys.
//
//	publish          claim               consume (a Welcome names it)
//	────────▶ available ─────▶ claimed ──────────────▶ consumed
//	               └──────────────────────────────────────▲
//
// A claim that lapses is never served again: its holder may still use it, nobody else can. Last-resort KeyPackages stay
// available whatever is done with them.
package keypackages

import (
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/mls"
)

// MaxAvailable bounds the unclaimed KeyPackages of one DID, all devices and suites together.
const MaxAvailable = 500

// MaxLifetime is how far ahead a publisher may set a KeyPackage's expiry.
const MaxLifetime = 90 * 24 * time.Hour

// claimLifetime is how long a claim is thought to be in use. Nothing is served again after it.
const claimLifetime = 30 * time.Minute

// Errors of publishing and of consumption.
var (
	ErrTooMany          = fmt.Errorf("more than %d KeyPackages are available already", MaxAvailable)
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

// Claim asks for one KeyPackage for each device of each DID.
type Claim struct {
	Caller      syntax.DID
	DIDs        []syntax.DID
	CipherSuite mls.CipherSuite // 0: each device's lowest-numbered suite
	ConvoID     *uuid.UUID      // what the claim is for, if the caller says
}
