// Package welcome delivers Welcomes (RFC 9420 §12.4.3.1) in two phases, so that an app that is
// killed between fetching and joining loses nothing. It owns the tables welcomes (a row for each
// recipient device) and welcome_bodies (the object's bytes, once).
//
//	            Fetch                        Confirm(true)
//	available ───────────────▶ in_flight ───────────────────────▶ consumed
//	    ▲                        │  │  ▲
//	    │   grace over           │  │  └── Fetch again: same bytes, same lease
//	    └────────────────────────┘  └───── Confirm(false): stays in_flight, records the error
//
//	available | in_flight ──▶ superseded  a newer Welcome for the same device, a commit that removes
//	                                      the device, or the recipient has left or was removed
//	available | in_flight ──▶ expired     retention over
//
// With the policy Consume, a lease whose grace is over without a reported failure goes to consumed.
//
// Every transition is an UPDATE of a locked row and raises the row's version. The database's clock
// decides. Each transition stands in one place: openlease.sql, confirm.sql, endLeases (and in bulk
// a sweep), supersede and the sweep of old ones.
package welcome

import (
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/messages"
	"mlsd/mls"
)

// State of a Welcome on its way to one device.
type State string

const (
	Available  State = "available"
	InFlight   State = "in_flight"
	Consumed   State = "consumed"
	Superseded State = "superseded"
	Expired    State = "expired"
)

// Retention.
const (
	keepConsumedBytes = 24 * time.Hour      // of the bytes, after the last confirmation
	KeepUnfetched     = 90 * 24 * time.Hour // of a Welcome that is not consumed
)

// Errors of Fetch and Confirm. ErrConvoNotFound and ErrNotMember are those of the message log.
var (
	ErrConvoNotFound = messages.ErrConvoNotFound
	ErrNotMember     = messages.ErrNotMember
	ErrNotFound      = errors.New("no Welcome for this device; if it is not in the group, it can join by an " +
		"external commit, or be invited again")
	ErrConsumed = errors.New("the Welcome has been consumed")
)

// ExpiryPolicy says what happens to a Welcome that is not confirmed within the grace.
type ExpiryPolicy string

const (
	Release ExpiryPolicy = "release" // the Welcome can be fetched again
	Consume ExpiryPolicy = "consume" // silence counts as success, unless a failure was reported
)

// Policy says how long a fetched Welcome waits for its confirmation, and what happens then.
type Policy struct {
	Grace    time.Duration
	OnExpiry ExpiryPolicy
}

// Device selects the Welcomes of one member: all of them, those of one device, or those sent to one
// KeyPackage.
type Device struct {
	DID           syntax.DID
	DeviceID      string            // "" is any
	KeyPackageRef mls.KeyPackageRef // nil is any
}

// Delivery is a fetched Welcome.
type Delivery struct {
	Body           []byte
	KeyPackageRef  mls.KeyPackageRef
	Epoch          int64 // that the Welcome leads into
	State          State
	GraceExpiresAt time.Time
	Request        bool // the recipient has not accepted the convo
}
