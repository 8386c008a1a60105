package serviceauth

import (
	"context"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/limit"
)

const (
	// addressInFlight is how many simultaneous look-ups tokens from one address can cause. Further
	// look-ups wait. It is less than the burst, so that an address whose callers all verify never
	// uses up its look-ups.
	addressInFlight = 8
	// addressWait is how long a look-up waits for other look-ups of its address.
	addressWait = 2 * time.Second
	// addresses is how many addresses are remembered.
	addresses = 65_536
	// noisyAfter is how many look-ups an address may have lost lately without being noisy.
	noisyAfter = 5
	// sharesKept is how many buckets of sessions' look-ups are remembered.
	sharesKept = 65_536
)

var (
	// lookupsOfAddress limits the look-ups that tokens from one address may cause without leading
	// to a verified caller.
	lookupsOfAddress = limit.Rate{PerSecond: 5, Burst: 50}
	// lookupsOfNoisy limits the look-ups for all noisy addresses together, by DID method. It is
	// half of the limit for unknown accounts. The other half stays for newcomers, however many
	// addresses forge tokens. An address is noisy after more than noisyAfter look-ups that were not
	// given back.
	lookupsOfNoisy = map[string]limit.Rate{"plc": half(plcLookups().unknown), "web": half(webLookups().unknown)}
	// These limit the look-ups that sessions may cause: for one account, one address, the accounts
	// of one registered domain, and all accounts of a DID method. The last limit is below that of
	// known accounts (plcLookups, webLookups), so that buying sessions delays no token. An address
	// or a domain has at most a tenth of it. Sessions are bought by clients and not by a PDS, once
	// an hour each, so an address has room for 18,000 sessions.
	currentOfDID     = limit.Rate{PerSecond: 1.0 / 60, Burst: 20}
	currentOfAddress = limit.Rate{PerSecond: 5, Burst: 50}
	currentOfDomain  = limit.Rate{PerSecond: 2, Burst: 20}
	currentOfMethod  = limit.Rate{PerSecond: 50, Burst: 500}
)

func half(r limit.Rate) limit.Rate { return limit.Rate{PerSecond: r.PerSecond / 2, Burst: r.Burst / 2} }

// share is a token bucket from which a look-up takes a unit. err is the error if the bucket is
// empty.
type share struct {
	key  string
	rate limit.Rate
	err  error
}

// takeAll takes a unit of each share, or of none, so that a look-up that one share refuses is not
// charged to the others. The narrowest share must come first, so that others do not miss units even
// for a moment.
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

// currentShares returns the shares of a look-up of did for a session. from is the address of the
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
// the address. done gives it back if the token verified, or if the caller is not the reason why it
// did not verify. All users of a PDS share its address, so an address whose tokens verify must
// never use up its look-ups.
//
// Errors: ErrSpent, if the look-ups are used up; ErrBusy, if too many look-ups of the address are
// running, or if the address is noisy and others are too; the error of ctx.
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
