package serviceauth

import (
	"context"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"golang.org/x/time/rate"

	"mlsd/internal/limit"
)

const (
	// addressInFlight is how many look-ups tokens from one address cause at the same time. Others
	// wait. It is less than the burst, so that an address all of whose callers verify never uses its
	// look-ups up.
	addressInFlight = 8
	// addressWait is how long a look-up waits for others of its address.
	addressWait = 2 * time.Second
	// addresses are how many addresses are remembered.
	addresses = 65_536
	// allCurrentRate and allCurrentBurst are the look-ups that the sessions of all accounts may cause,
	// per second and at once. They are less than those of known accounts (plcLookups), so that buying
	// sessions delays no token.
	allCurrentRate, allCurrentBurst = 50, 500
	// currentDIDs is for how many accounts the look-ups of their sessions are remembered.
	currentDIDs = 65_536
)

var (
	// lookupsOfAddress are the look-ups that tokens from one address may cause if no verified caller
	// follows from them.
	lookupsOfAddress = limit.Rate{PerSecond: 5, Burst: 50}
	// currentOfDID are the look-ups that the sessions of one account may cause.
	currentOfDID = limit.Rate{PerSecond: 1.0 / 60, Burst: 20}
)

// currentLimit bounds the look-ups of [CachedDirectory.Current].
type currentLimit struct {
	all  *rate.Limiter
	dids *limit.Buckets[syntax.DID]
	now  func() time.Time
}

func newCurrentLimit(now func() time.Time) *currentLimit {
	return &currentLimit{all: rate.NewLimiter(allCurrentRate, allCurrentBurst),
		dids: limit.NewBuckets[syntax.DID](currentDIDs, now), now: now}
}

// admit counts a look-up of did. Errors: ErrOften, ErrBusy.
func (l *currentLimit) admit(did syntax.DID) error {
	if _, ok := l.dids.Take(did, currentOfDID, 1); !ok {
		return ErrOften
	}
	if !l.all.AllowN(l.now(), 1) {
		return ErrBusy
	}
	return nil
}

// addressLimits bound the look-ups that tokens from one address cause.
type addressLimits struct {
	buckets *limit.Buckets[string]
	slots   *limit.Queue
}

func newAddressLimits(now func() time.Time) *addressLimits {
	return &addressLimits{limit.NewBuckets[string](addresses, now), &limit.Queue{Share: addressInFlight}}
}

// admit waits until a token from the address may cause a look-up. The look-up is charged to the
// address, unless done gives it back because the token verified, or because the caller is not the
// reason why it did not. All users of a PDS share its address, so an address whose tokens verify
// never uses its look-ups up. The error is ErrSpent if they are used up, ErrBusy if the address has
// too many under way, or ctx's.
func (l *addressLimits) admit(ctx context.Context, from string) (done func(giveBack bool), err error) {
	if l.buckets.Level(from, lookupsOfAddress).Left < 1 && l.slots.UsedBy(from) == 0 { // none is given back soon
		return nil, ErrSpent
	}
	waiting, cancel := context.WithTimeout(ctx, addressWait)
	defer cancel()
	if err := l.slots.Acquire(waiting, from, 1); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, ErrBusy
	}
	if _, ok := l.buckets.Take(from, lookupsOfAddress, 1); !ok {
		l.slots.Release(from, 1)
		return nil, ErrSpent
	}
	return func(giveBack bool) {
		if giveBack {
			l.buckets.Give(from, lookupsOfAddress, 1)
		}
		l.slots.Release(from, 1)
	}, nil
}
