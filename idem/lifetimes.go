package idem

import "time"

// Operation says how long the keys of one operation last. An operation is a method, or work of the
// server's own.
type Operation struct {
	NSID string
	// Life is the lifetime of a record: within it a repeated request gets the first answer. After
	// it the key is new again.
	Life time.Duration
	// Lease is the lifetime of a reservation that its holder does not extend. Only work outside the
	// database has one.
	Lease time.Duration
}

// The lifetimes of a [Request] that states none.
const (
	DefaultLife  = 7 * 24 * time.Hour
	DefaultLease = 5 * time.Minute
)

// NSIDPush names the operation of push jobs.
const NSIDPush = "mlsd.push"

// Push is the operation of push jobs (package push): work outside the database, not a method.
var Push = Operation{NSID: NSIDPush, Life: 24 * time.Hour, Lease: time.Minute}

// life is the lifetime of the request's record.
func (r *Request) life() time.Duration {
	if r.Life == 0 {
		return DefaultLife
	}
	return r.Life
}

// lease is the lifetime of the request's reservation.
func (r *Request) lease() time.Duration {
	if r.Lease == 0 {
		return DefaultLease
	}
	return r.Lease
}
