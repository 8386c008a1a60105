package serviceauth

import (
	"context"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// addressRate and addressBurst are the look-ups that tokens from one address may cause, per
	// second and at once, if no verified caller follows from them.
	addressRate, addressBurst = 5, 50
	// addressInFlight is how many look-ups tokens from one address cause at the same time. Others
	// wait. It is less than the burst, so that an address all of whose callers verify never spends
	// its budget.
	addressInFlight = 8
	// addressWait is how long a look-up waits for others of its address.
	addressWait = 2 * time.Second
	// addresses and domainsKept are how many budgets are remembered. A forgotten one is full.
	addresses, domainsKept = 65_536, 16_384
)

const (
	// currentRate and currentBurst are the look-ups that the sessions of one account may cause, per
	// second and at once. allCurrentRate and allCurrentBurst are those of all accounts. They are
	// less than those of known accounts (plcLookups), so that buying sessions delays no token.
	currentRate, currentBurst       = 1.0 / 60, 20
	allCurrentRate, allCurrentBurst = 50, 500
	// currentDIDs is for how many accounts the look-ups are remembered. A forgotten account has all.
	currentDIDs = 65_536
)

// currentLimit bounds the look-ups of [CachedDirectory.Current].
type currentLimit struct {
	all *rate.Limiter

	mu   sync.Mutex // guards what follows
	dids *simplelru.LRU[syntax.DID, *bucket]
}

func newCurrentLimit() *currentLimit {
	return &currentLimit{all: rate.NewLimiter(allCurrentRate, allCurrentBurst), dids: newLRU[syntax.DID, *bucket](currentDIDs)}
}

// admit counts a look-up of did. Errors: ErrOften, ErrBusy.
func (l *currentLimit) admit(did syntax.DID, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.dids.Get(did)
	if !ok {
		b = &bucket{left: currentBurst, at: now}
		l.dids.Add(did, b)
	}
	switch {
	case !b.take(now, currentRate, currentBurst):
		return ErrOften
	case !l.all.AllowN(now, 1):
		return ErrBusy
	}
	return nil
}

// bucket is a token bucket that gives back. rate.Limiter does not: a reservation whose time has
// come cannot be cancelled.
type bucket struct {
	left float64
	at   time.Time // when left was counted
}

// take takes one, if there is one.
func (b *bucket) take(now time.Time, perSecond, burst float64) bool {
	b.left = min(burst, b.left+max(0, now.Sub(b.at).Seconds())*perSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// addressLimits bound the look-ups that tokens from one address cause.
type addressLimits struct {
	now func() time.Time

	mu  sync.Mutex // guards all, and the buckets in it
	all *simplelru.LRU[string, *address]
}

type address struct {
	bucket
	slots chan struct{}
}

func newAddressLimits(now func() time.Time) *addressLimits {
	return &addressLimits{now: now, all: newLRU[string, *address](addresses)}
}

// admit waits until a token from the address may cause a look-up. The look-up is charged to the
// address, unless done gives it back because the token verified, or because the caller is not the
// reason why it did not. All users of a PDS share its address, so an address whose tokens verify
// never spends its budget. The error is ErrSpent if the budget is spent,
// ErrBusy if the address has too many look-ups under way, or ctx's.
func (l *addressLimits) admit(ctx context.Context, from string) (done func(giveBack bool), err error) {
	a, left := l.of(from)
	if !left {
		return nil, ErrSpent
	}
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	if !l.take(a) {
		<-a.slots
		return nil, ErrSpent
	}
	return func(giveBack bool) {
		if giveBack {
			l.giveBack(a)
		}
		<-a.slots
	}, nil
}

// wait waits for a slot, which the caller then has.
func (a *address) wait(ctx context.Context) error {
	select {
	case a.slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(addressWait)
	defer timer.Stop()
	select {
	case a.slots <- struct{}{}:
		return nil
	case <-timer.C:
		return ErrBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

// of returns the address, and whether a look-up is left or will soon be given back.
func (l *addressLimits) of(from string) (a *address, left bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.all.Get(from)
	if !ok {
		a = &address{bucket: bucket{left: addressBurst, at: l.now()}, slots: make(chan struct{}, addressInFlight)}
		l.all.Add(from, a)
	}
	if !a.take(l.now(), addressRate, addressBurst) {
		return a, len(a.slots) > 0
	}
	a.left++
	return a, true
}

func (l *addressLimits) take(a *address) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return a.take(l.now(), addressRate, addressBurst)
}

func (l *addressLimits) giveBack(a *address) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.left = min(addressBurst, a.left+1)
}

// domainLimits are the limits of the look-ups of did:web accounts of one registered domain.
type domainLimits struct {
	perSecond, burst float64
	inFlight         int // 0: there are no domains
}

// domains bound the look-ups of the accounts of one registered domain. Who registered a domain has
// any number of accounts in it, and decides how slowly their documents come.
type domains struct {
	domainLimits

	mu     sync.Mutex // guards the rest
	recent *simplelru.LRU[string, *bucket]
	busy   map[string]*domain // look-ups under way, waiting ones included
}

type domain struct {
	slots chan struct{}
	users int
}

func newDomains(l domainLimits) *domains {
	return &domains{domainLimits: l, recent: newLRU[string, *bucket](domainsKept), busy: map[string]*domain{}}
}

// acquire counts a look-up in the domain and returns the domain's slots. nil: there is no limit.
// Without an error, release must follow. The error is ErrBusy if the domain's rate is reached. It
// does not apply to known accounts: anybody can name accounts of a domain that do not exist.
func (d *domains) acquire(name string, known bool) (chan struct{}, error) {
	if d.inFlight == 0 {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !known && !d.take(name, time.Now()) {
		return nil, ErrBusy
	}
	busy := d.busy[name]
	if busy == nil {
		busy = &domain{slots: make(chan struct{}, d.inFlight)}
		d.busy[name] = busy
	}
	busy.users++
	return busy.slots, nil
}

// take takes one look-up from the rate of a domain. The caller holds d.mu.
func (d *domains) take(name string, now time.Time) bool {
	b, ok := d.recent.Get(name)
	if !ok {
		b = &bucket{left: d.burst, at: now}
		d.recent.Add(name, b)
	}
	return b.take(now, d.perSecond, d.burst)
}

// release ends a look-up that acquire counted.
func (d *domains) release(name string) {
	if d.inFlight == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	busy := d.busy[name]
	if busy.users--; busy.users == 0 {
		delete(d.busy, name)
	}
}

// newLRU returns a map of the size last used entries. It is not safe for concurrent use.
func newLRU[K comparable, V any](size int) *simplelru.LRU[K, V] {
	l, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // size is a positive constant
	}
	return l
}
