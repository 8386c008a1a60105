package serviceauth

import (
	"context"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

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
	// noisyAfter is how many look-ups an address may have lost lately and is not noisy.
	noisyAfter = 5
	// sharesKept are how many buckets of sessions' look-ups are remembered.
	sharesKept = 65_536
)

var (
	// lookupsOfAddress are the look-ups that tokens from one address may cause if no verified caller
	// follows from them.
	lookupsOfAddress = limit.Rate{PerSecond: 5, Burst: 50}
	// lookupsOfNoisy are the look-ups for all noisy addresses together, by DID method. They are half of
	// those for accounts that are not known, so that the other half stays for newcomers, however many
	// addresses forge tokens. An address is noisy after more than noisyAfter look-ups that were not
	// given back.
	lookupsOfNoisy = map[string]limit.Rate{"plc": half(plcLookups().unknown), "web": half(webLookups().unknown)}
	// The look-ups that sessions may cause: those of one account, of one address, of the accounts of
	// one registered domain, and of all accounts of a DID method. All together are fewer than those of
	// known accounts (plcLookups, webLookups), so that buying sessions delays no token. An address or a
	// domain has a tenth of them at most. Sessions come from clients and not from a PDS, once an hour
	// each: an address has room for 18,000.
	currentOfDID     = limit.Rate{PerSecond: 1.0 / 60, Burst: 20}
	currentOfAddress = limit.Rate{PerSecond: 5, Burst: 50}
	currentOfDomain  = limit.Rate{PerSecond: 2, Burst: 20}
	currentOfMethod  = limit.Rate{PerSecond: 50, Burst: 500}
)

func half(r limit.Rate) limit.Rate { return limit.Rate{PerSecond: r.PerSecond / 2, Burst: r.Burst / 2} }

// share is a token bucket of which a look-up takes a unit. err says that it is empty.
type share struct {
	key  string
	rate limit.Rate
	err  error
}

// takeAll takes a unit of each share, or of none: a look-up that one refuses is not charged to the
// others. The narrowest comes first. Nobody else then misses what it has had for a moment.
func takeAll(buckets *limit.Buckets[string], shares ...share) error {
	for i, s := range shares {
		if _, ok := buckets.Take(s.key, s.rate, 1); !ok {
			for _, taken := range shares[:i] {
				buckets.Give(taken.key, taken.rate, 1)
			}
			return s.err
		}
	}
	return nil
}

// currentShares are the shares of a look-up of did for a session. from is the address of the
// request.
func currentShares(did syntax.DID, from string) []share {
	shares := []share{{did.String(), currentOfDID, ErrOften}, {"address " + from, currentOfAddress, ErrSpent}}
	if did.Method() == "web" {
		shares = append(shares, share{"domain " + registrable(did.Identifier()), currentOfDomain, ErrBusy})
	}
	return append(shares, share{"did:" + did.Method(), currentOfMethod, ErrBusy})
}

// addressLimits bound the look-ups that tokens from one address cause.
type addressLimits struct {
	buckets *limit.Buckets[string]
	slots   *limit.Queue
}

func newAddressLimits(now func() time.Time) *addressLimits {
	return &addressLimits{limit.NewBuckets[string](addresses, now), &limit.Queue{Share: addressInFlight}}
}

// admit waits until a token of did from the address may cause a look-up. The look-up is charged to
// the address, unless done gives it back because the token verified, or because the caller is not the
// reason why it did not. All users of a PDS share its address, so an address whose tokens verify
// never uses its look-ups up. The error is ErrSpent if they are used up; ErrBusy if the address has
// too many under way, or if it is noisy and others are too; or ctx's.
func (l *addressLimits) admit(ctx context.Context, did syntax.DID, from string) (done func(giveBack bool), err error) {
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
	shares := []share{{from, lookupsOfAddress, ErrSpent}}
	if l.buckets.Level(from, lookupsOfAddress).Left < float64(lookupsOfAddress.Burst-noisyAfter) {
		shares = append(shares, share{"did:" + did.Method(), lookupsOfNoisy[did.Method()], ErrBusy})
	}
	if err := takeAll(l.buckets, shares...); err != nil {
		l.slots.Release(from, 1)
		return nil, err
	}
	return func(giveBack bool) {
		if giveBack {
			for _, s := range shares {
				l.buckets.Give(s.key, s.rate, 1)
			}
		}
		l.slots.Release(from, 1)
	}, nil
}
