package idem

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mlsd/internal/duration"
)

// Operation says how long the keys of one operation last. An operation is a method, or internal
// work of the server.
type Operation struct {
	NSID string
	// Life is the lifetime of a record. During this time, a repeated request gets the first answer.
	// After it, the key counts as new. 0 means that the operation has no records.
	Life time.Duration
	// Least is the shortest Life that an operator can set.
	Least Floor
	// Most is the longest Life that an operator can set. 0 means MaxLife.
	Most time.Duration
	// Lease is the lifetime of a reservation that its holder does not extend. 0 means that the
	// operation has no leases, because it does no work outside the database.
	Lease time.Duration
}

// Floor is the shortest lifetime of a record, with the reason: what is not protected against
// repetition once the record is gone. The zero Floor allows every lifetime.
type Floor struct {
	Life    time.Duration
	Because string
}

// Name returns the name of the operation in settings: the last part of its NSID.
func (o Operation) Name() string {
	if o.NSID == "" {
		return defaultName
	}
	return o.NSID[strings.LastIndexByte(o.NSID, '.')+1:]
}

// defaultName is the name of the operation without an NSID.
const defaultName = "default"

// The lifetimes of a [Request] that sets none.
const (
	DefaultLife  = 7 * 24 * time.Hour
	DefaultLease = 5 * time.Minute
)

// Limits of what an operator can set.
const (
	// MaxLife bounds the lifetime of a record, because it bounds the table.
	MaxLife = 90 * 24 * time.Hour
	// MinLease is long enough for a call of 10 s between two heartbeats. A holder that misses
	// heartbeats for a lease loses its work.
	MinLease = 15 * time.Second
	// MaxLease bounds how long the work of a dead holder waits.
	MaxLease = time.Hour
)

// Default is the operation of requests that set no lifetimes.
var Default = Operation{Life: DefaultLife, Lease: DefaultLease}

// NSIDPush names the operation of push jobs.
const NSIDPush = "mlsd.push"

// Push is the operation of push jobs (package push). They are work outside the database, and not a
// method.
var Push = Operation{NSID: NSIDPush, Life: 24 * time.Hour, Lease: time.Minute,
	Least: Floor{2 * time.Hour, "the next attempt at a job can be an hour away, and its record has the fence"}}

// NSIDInvitation names the operation of invitations to people of other services.
const NSIDInvitation = "mlsd.invitation"

// Invitation is the operation of a job that delivers an invitation (package network).
var Invitation = Operation{NSID: NSIDInvitation, Life: 24 * time.Hour, Lease: time.Minute, Least: Push.Least}

// Lifetimes are the operations that have lifetimes, by NSID.
type Lifetimes map[string]Operation

// NewLifetimes returns the lifetimes of operations. Each NSID must occur once.
func NewLifetimes(operations ...Operation) Lifetimes {
	l := Lifetimes{}
	for _, o := range operations {
		l[o.NSID] = o
	}
	return l
}

// All returns the operations by NSID. The first is the default, whose NSID is "".
func (l Lifetimes) All() []Operation {
	return slices.SortedFunc(maps.Values(l), func(a, b Operation) int { return cmp.Compare(a.NSID, b.NSID) })
}

// WithLives returns a copy of l in which text sets how long the records of some operations last.
// text has pairs of a name and a duration, such as "createConvo=48h,addMembers=24h". An error names
// the unknown operation or the duration that is not allowed.
func (l Lifetimes) WithLives(text string) (Lifetimes, error) {
	known := func(o Operation) bool { return o.NSID != "" && o.Life != 0 }
	return l.with(text, known, func(o *Operation, d time.Duration) error {
		switch {
		case d < o.Least.Life:
			return fmt.Errorf("must be at least %s: %s", o.Least.Life, o.Least.Because)
		case d > cmp.Or(o.Most, MaxLife):
			return fmt.Errorf("must be at most %s", cmp.Or(o.Most, MaxLife))
		}
		o.Life = d
		return nil
	})
}

// WithLeases is WithLives for the leases of work outside the database. In text, default stands for
// all operations that are not named.
func (l Lifetimes) WithLeases(text string) (Lifetimes, error) {
	known := func(o Operation) bool { return o.Lease != 0 }
	return l.with(text, known, func(o *Operation, d time.Duration) error {
		if d < MinLease || d > MaxLease {
			return fmt.Errorf("must be from %s to %s", MinLease, MaxLease)
		}
		o.Lease = d
		return nil
	})
}

// with returns a copy of l in which the pairs of text are set.
func (l Lifetimes) with(text string, known func(Operation) bool, set func(*Operation, time.Duration) error) (Lifetimes,
	error) {
	changed, given := maps.Clone(l), map[string]bool{}
	for _, pair := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not a pair such as %s=24h", pair, l.names(known)[0])
		}
		o, err := l.named(name, known)
		if err != nil {
			return nil, err
		}
		if given[o.NSID] {
			return nil, fmt.Errorf("%s is given twice", name)
		}
		given[o.NSID] = true
		d, err := duration.Parse(value)
		if err == nil {
			err = set(&o, d)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pair, err)
		}
		changed[o.NSID] = o
	}
	return changed, nil
}

// named returns the known operation with this name in settings.
func (l Lifetimes) named(name string, known func(Operation) bool) (Operation, error) {
	for _, o := range l {
		if o.Name() == name && known(o) {
			return o, nil
		}
	}
	return Operation{}, fmt.Errorf("unknown operation %q: want one of %s", name, strings.Join(l.names(known), ", "))
}

// names returns the names of the known operations in settings.
func (l Lifetimes) names(known func(Operation) bool) (names []string) {
	for _, o := range l.All() {
		if known(o) {
			names = append(names, o.Name())
		}
	}
	slices.Sort(names)
	return names
}

// life returns the lifetime of the request's record.
func (r *Request) life() time.Duration { return cmp.Or(r.Life, DefaultLife) }
