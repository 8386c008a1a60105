package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"mlsd/internal/limit"
	"mlsd/internal/pgpool"
)

const (
	// verifiedKeys, otherKeys and cachedFailures bound what is remembered: keys of accounts with a
	// verified token, keys of other accounts, and failures.
	verifiedKeys, otherKeys, cachedFailures = 65_536, 16_384, 16_384
	// keyFresh is how long a key is used without a new look-up. So a replaced key can still sign
	// for this long, unless Forget is called. A refresh finds the new key at once.
	keyFresh = time.Hour
	// keyStale is how long a key is used while the PLC directory or the host of a did:web fails.
	keyStale = 24 * time.Hour
	// noKeyFor is how long a DID without a usable key is refused without a look-up.
	noKeyFor = 2 * time.Minute
	// failedFor is how long a DID is refused without a look-up after a failed look-up.
	failedFor = 5 * time.Second
	// lookupTimeout bounds one look-up, including waits. A request makes at most two look-ups, and
	// a PDS gives up after 10 s.
	lookupTimeout = 4 * time.Second
)

// CachedDirectory is a [Directory] that remembers keys. Make one with [NewDirectory].
//
// A key is used for an hour after it was fetched. While the PLC directory or the host of a did:web
// fails, a key is used for a day. This does not apply if this server is busy or its limits are
// reached; then the error is [ErrBusy]. After [Forget], this node no longer uses the key; other
// nodes use it for up to [SyncInterval].
//
// indigo's CacheDirectory is not enough, for three reasons. If a request is cancelled, its look-up
// fails, and the failure is cached for everyone, so anybody could lock out any caller. Failures and
// keys share one LRU, so made-up DIDs evict real ones. A purged key is gone even if the next
// look-up fails.
type CachedDirectory struct {
	fetch  fetchKey
	now    func() time.Time
	shared *sharedKeys // nil means that keys are only in memory
	flight singleflight.Group
	asked  *limit.Buckets[string] // look-ups by Current
	// services is what Services returns; nil in tests that make their own directory.
	services *Services

	mu sync.Mutex // guards the fields below
	// Accounts with a verified token are never evicted for other accounts, because those cost
	// nothing to make.
	verified *simplelru.LRU[syntax.DID, cachedKey]
	others   *simplelru.LRU[syntax.DID, cachedKey]
	failures *simplelru.LRU[syntax.DID, cachedFailure]
	loading  map[syntax.DID]*load
	marks    marks
	pending  map[syntax.DID]cachedKey // keys that Sync must write; at most maxPending
}

// fetchKey fetches the key of did. known says that a token of did has verified before.
type fetchKey func(ctx context.Context, did syntax.DID, known bool) (atcrypto.PublicKey, error)

type cachedKey struct {
	key     atcrypto.PublicKey
	fetched time.Time // by this node's clock
	version int64     // version of the row when the look-up began; unread if it is not known
	stored  bool      // a token has verified with this key, and Sync has written the row
}

type cachedFailure struct {
	err   error
	until time.Time
}

// load counts the running look-ups of one DID.
type load struct {
	n    int
	void bool // the DID was forgotten during the look-ups
}

func newCachedDirectory(now func() time.Time, fetch fetchKey, db pgpool.DB) *CachedDirectory {
	c := &CachedDirectory{
		fetch: fetch, now: now,
		verified: newLRU[syntax.DID, cachedKey](verifiedKeys),
		others:   newLRU[syntax.DID, cachedKey](otherKeys),
		failures: newLRU[syntax.DID, cachedFailure](cachedFailures),
		asked:    limit.NewBuckets[string](sharesKept, now),
		loading:  map[syntax.DID]*load{},
		pending:  map[syntax.DID]cachedKey{},
	}
	if db != nil {
		c.shared = newSharedKeys(db)
	}
	return c
}

// Services finds delivery services, with the sources and the limits of this directory.
func (c *CachedDirectory) Services() *Services { return c.services }

// Known implements [Directory].
func (c *CachedDirectory) Known(did syntax.DID) Known {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	known, verified, ok := c.get(did)
	if ok && now.Sub(known.fetched) < keyFresh {
		return Known{Key: known.key, Verified: verified}
	}
	f, failed := c.failures.Get(did)
	switch {
	case !failed || !now.Before(f.until):
		return Known{Verified: verified}
	case ok && outage(f.err) && now.Sub(known.fetched) < keyStale:
		return Known{Key: known.key, Verified: verified, Stale: true}
	}
	return Known{Err: f.err, Verified: verified}
}

// Resolve implements [Directory].
func (c *CachedDirectory) Resolve(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	if known := c.Known(did); known.Key != nil || known.Err != nil {
		return known.Key, known.Err
	}
	found, err := c.lookup(ctx, did, false)
	if err != nil && ctx.Err() == nil && outage(err) {
		// The failure is remembered, and Known decides whether the key can be used.
		if known := c.Known(did); known.Key != nil {
			return known.Key, nil
		}
	}
	return found.key, err
}

// Refresh implements [Directory].
func (c *CachedDirectory) Refresh(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	found, err := c.lookup(ctx, did, true)
	return found.key, err
}

// Identity is the key of an account, and the version of its row in identity_keys. The version
// changes on all nodes when the key is forgotten or replaced.
type Identity struct {
	Key     atcrypto.PublicKey
	Version int64
}

// Current looks up the key of did now, or joins a running look-up of did. It stores the key at
// once, so that every node notices a replacement. A token of did must have verified before. from is
// the client's address or network (currentShares). Errors: those of [Validator.Validate] without
// ErrMissing, and [ErrOften].
func (c *CachedDirectory) Current(ctx context.Context, did syntax.DID, from string) (Identity, error) {
	if err := takeAll(c.asked, currentShares(did, from)...); err != nil {
		return Identity{}, err
	}
	found, err := c.lookup(ctx, did, true)
	switch {
	case err != nil:
		return Identity{}, lookupError(did, err)
	case c.shared == nil:
		return Identity{Key: found.key}, nil
	case found.version == unread:
		return Identity{}, fmt.Errorf("%w: the version of its issuer's key", ErrUnavailable)
	}
	if err := c.shared.write(ctx, c.now(), map[syntax.DID]cachedKey{did: found}); err != nil {
		return Identity{}, err
	}
	return Identity{Key: found.key, Version: found.version}, nil
}

// Verified implements [Directory].
func (c *CachedDirectory) Verified(did syntax.DID, key atcrypto.PublicKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, _, ok := c.get(did)
	if !ok || known.stored || !known.key.Equal(key) {
		return
	}
	known.stored = true
	c.others.Remove(did)
	c.verified.Add(did, known)
	if c.shared != nil && known.version != unread && len(c.pending) < maxPending {
		c.pending[did] = known
	}
}

// Forget drops the key of did, in memory and on every node within seconds, because the account
// changed. After an error other nodes may keep the key: call it again.
func (c *CachedDirectory) Forget(ctx context.Context, did syntax.DID) error {
	c.drop(did)
	if c.shared == nil {
		return nil
	}
	return c.shared.forget(ctx, did)
}

// outage reports whether err means that a directory failed. If this server is busy, or there is no
// key, it returns false.
func outage(err error) bool { return !errors.Is(err, ErrIssuer) && !errors.Is(err, ErrBusy) }

// lookup fetches the key of did and remembers the outcome. Without refresh, the key may come from
// another node.
func (c *CachedDirectory) lookup(ctx context.Context, did syntax.DID, refresh bool) (cachedKey, error) {
	flight := "resolve " + did.String()
	if refresh {
		flight = "refresh " + did.String()
	}
	return shareFetch(ctx, &c.flight, flight, func(ctx context.Context) (cachedKey, error) {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		found, void, err := c.load(ctx, did, refresh)
		if void {
			// The account changed while it was looked up.
			found, void, err = c.load(ctx, did, refresh)
		}
		if void {
			return cachedKey{}, ErrBusy
		}
		return found, err
	})
}

// shareFetch returns the result of fetch. Simultaneous calls with the same flight share one fetch.
// A call returns when its ctx ends, but the fetch continues.
func shareFetch[T any](ctx context.Context, flights *singleflight.Group, flight string,
	fetch func(context.Context) (T, error)) (found T, err error) {
	detached := context.WithoutCancel(ctx)
	result := flights.DoChan(flight, func() (any, error) { return fetch(detached) })
	select {
	case r := <-result:
		found, _ = r.Val.(T)
		return found, r.Err
	case <-ctx.Done():
		return found, ctx.Err()
	}
}

// load reads the key of did from the table or fetches it, and remembers the outcome. If did was
// forgotten meanwhile, it remembers nothing, and void is true.
func (c *CachedDirectory) load(ctx context.Context, did syntax.DID, refresh bool) (found cachedKey, void bool,
	err error) {
	l := c.begin(did)
	r := c.shared.read(ctx, did)
	found = cachedKey{key: r.key, fetched: c.now().Add(-r.age), version: r.version, stored: true}
	if refresh || r.key == nil || r.age >= keyFresh {
		fetched := cachedKey{fetched: c.now(), version: r.version}
		fetched.key, err = c.fetch(ctx, did, r.verified || c.Known(did).Verified)
		if err == nil {
			found = fetched
		}
	}
	if errors.Is(err, ErrIssuer) && r.key != nil {
		// Other nodes must not use the key either. If forget fails, they notice within an hour.
		_ = c.shared.forget(ctx, did)
	}
	return found, c.end(did, l, found, err), err
}

// begin records that a look-up of did begins.
func (c *CachedDirectory) begin(did syntax.DID) *load {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.loading[did]
	if l == nil {
		l = &load{}
		c.loading[did] = l
	}
	l.n++
	return l
}

// end records that a look-up is over. It remembers the outcome, unless did was forgotten meanwhile.
func (c *CachedDirectory) end(did syntax.DID, l *load, found cachedKey, err error) (void bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.n--; l.n == 0 && c.loading[did] == l {
		delete(c.loading, did)
	}
	if !l.void {
		c.remember(did, found, err)
	}
	return l.void
}

// remember stores the outcome of a look-up. Only a new key or [ErrIssuer] replaces a remembered
// key. The caller holds c.mu.
func (c *CachedDirectory) remember(did syntax.DID, found cachedKey, err error) {
	known, verified, ok := c.get(did)
	switch {
	case err == nil:
		c.failures.Remove(did)
	case errors.Is(err, ErrIssuer):
		c.remove(did)
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(noKeyFor)})
		return
	case !outage(err): // no source was asked
		return
	default:
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(failedFor)})
		if found.key == nil || ok && !known.fetched.Before(found.fetched) {
			return
		}
		// The row is from another node. It is old, but newer than this node's key.
	}
	if verified || found.stored {
		c.verified.Add(did, found)
	} else {
		c.others.Add(did, found)
	}
}

// get returns the remembered key of did, however old it is. The caller holds c.mu.
func (c *CachedDirectory) get(did syntax.DID) (known cachedKey, verified, ok bool) {
	if known, ok = c.verified.Get(did); ok {
		return known, true, true
	}
	known, ok = c.others.Get(did)
	return known, false, ok
}

// remove drops the key of did. The caller holds c.mu.
func (c *CachedDirectory) remove(did syntax.DID) {
	c.verified.Remove(did)
	c.others.Remove(did)
	delete(c.pending, did)
}

// drop forgets did on this node, and the results of look-ups that are running.
func (c *CachedDirectory) drop(did syntax.DID) {
	if c.services != nil {
		c.services.Forget(did)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(did)
	c.failures.Remove(did)
	if l := c.loading[did]; l != nil {
		l.void = true
		delete(c.loading, did)
	}
}

// newLRU returns a map of the most recently used entries, at most size of them. It is not safe for
// concurrent use.
func newLRU[K comparable, V any](size int) *simplelru.LRU[K, V] {
	l, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // size is a positive constant
	}
	return l
}
