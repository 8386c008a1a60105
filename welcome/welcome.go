// Package welcome delivers Welcomes (RFC 9420 §12.4.3.1) in two phases, so that an app killed between fetching and joining
// loses nothing. It owns the tables welcomes (a row per recipient device) and welcome_bodies (the object's bytes, once).
//
//	            Fetch                        Confirm(true)
//	available ───────────────▶ in_flight ───────────────────────▶ consumed
//	    ▲                        │  │  ▲
//	    │   grace over, no word  │  │  └── Fetch again: same bytes, same lease
//	    └────────────────────────┘  └───── Confirm(false): stays in_flight, error recorded, fetched again at will
//	available | in_flight ──▶ superseded (a newer Welcome for the same device, or the recipient was added anew)
//	available | in_flight ──▶ expired    (retention over)
//
// Every transition is one UPDATE of a locked row and raises its version. Only the database's clock counts.
package welcome

import (
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

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

// Retention of what is no longer, or never was, asked for.
const (
	keepConsumedBytes = 24 * time.Hour
	keepUnfetched     = 90 * 24 * time.Hour
)

var (
	ErrNotFound = errors.New("no Welcome for this device")
	ErrConsumed = errors.New("the Welcome has been consumed")
)

// ExpiryPolicy says what silence means once the grace is over.
type ExpiryPolicy string

const (
	Release ExpiryPolicy = "release" // the Welcome can be fetched again
	Consume ExpiryPolicy = "consume" // silence counts as success, unless a failure was reported
)

// Policy is how long a fetched Welcome waits for its confirmation, and what happens then.
type Policy struct {
	Grace    time.Duration
	OnExpiry ExpiryPolicy
}

// Device selects the Welcomes of one member: all of them, those of one device, or those sent to one KeyPackage.
type Device struct {
	DID           syntax.DID
	DeviceID      string            // "" is any
	KeyPackageRef mls.KeyPackageRef // nil is any
}

// Delivery is a Welcome as its recipient gets it.
type Delivery struct {
	Body           []byte
	KeyPackageRef  mls.KeyPackageRef
	Epoch          int64 // that the Welcome leads into
	State          State
	GraceExpiresAt time.Time
}

// row is what a transition needs to know of a Welcome.
type row struct {
	id             uuid.UUID
	ref            mls.KeyPackageRef
	epoch          int64
	state          State
	graceOver      bool
	fetched        bool // at any time
	failed         bool // Confirm(false) was said of the delivery under way
	graceExpiresAt *time.Time
}
