package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

const (
	// cachedKeys is how many keys, and how many failures, are remembered.
	cachedKeys, cachedFailures = 65_536, 16_384
	// keyFresh is how long a key is used without asking again, and so how long a
	// key that was rotated away can still sign. A key rotated to is found at
	// once, by a refresh.
	keyFresh = time.Hour
	// keyStale is how long a key is used while its DID document cannot be
	// fetched.
	keyStale = 24 * time.Hour
	// noKeyFor is how long a DID without a usable key is refused unasked.
	noKeyFor = 2 * time.Minute
	// failedFor is the same for a look-up that failed, when the next may succeed.
	failedFor = 5 * time.Second
	// lookupTimeout bounds one look-up, waiting included. A request makes two at
	// most (resolve, refresh), and a PDS gives up after 10 s.
	lookupTimeout = 4 * time.Second
)

// keyCache is a Directory: it remembers what fetch returns. indigo's
// CacheDirectory would do, but for three things: a request that goes away fails
// the look-up it started and leaves the failure in the cache for everyone, so
// that any stranger could lock out any caller; failures and keys share one LRU,
// so that made-up DIDs push out real ones; and what is purged is gone even if the
// next look-up fails.
type keyCache struct {
	fetch    func(context.Context, syntax.DID) (atcrypto.PublicKey, error)
	now      func() time.Time
	keys     *lru.Cache[syntax.DID, cachedKey]
	failures *lru.Cache[syntax.DID, cachedFailure]
	flight   singleflight.Group // by DID
}

type cachedKey struct {
	key     atcrypto.PublicKey
	fetched time.Time
}

type cachedFailure struct {
	err   error
	until time.Time
}

func newKeyCache(now func() time.Time, fetch func(context.Context, syntax.DID) (atcrypto.PublicKey, error)) (*keyCache, error) {
	keys, err := lru.New[syntax.DID, cachedKey](cachedKeys)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	failures, err := lru.New[syntax.DID, cachedFailure](cachedFailures)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	return &keyCache{fetch: fetch, now: now, keys: keys, failures: failures}, nil
}

// Resolve implements [Directory].
func (c *keyCache) Resolve(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	known, ok := c.keys.Get(did)
	if ok && c.now().Sub(known.fetched) < keyFresh {
		return known.key, nil
	}
	err := c.recentFailure(did)
	if err == nil {
		var key atcrypto.PublicKey
		if key, err = c.lookup(ctx, did); err == nil {
			return key, nil
		}
	}
	if ok && !errors.Is(err, ErrIssuer) && c.now().Sub(known.fetched) < keyStale {
		return known.key, nil
	}
	return nil, err
}

// Refresh implements [Directory].
func (c *keyCache) Refresh(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	return c.lookup(ctx, did)
}

// recentFailure returns the error of a look-up that failed a moment ago.
func (c *keyCache) recentFailure(did syntax.DID) error {
	f, ok := c.failures.Get(did)
	if !ok || !c.now().Before(f.until) {
		return nil
	}
	return f.err
}

// lookup fetches the key of did and remembers the outcome. Calls at the same
// time share one fetch, which goes on if a caller goes away.
func (c *keyCache) lookup(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	detached := context.WithoutCancel(ctx)
	result := c.flight.DoChan(did.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(detached, lookupTimeout)
		defer cancel()
		key, err := c.fetch(ctx, did)
		c.remember(did, key, err)
		return key, err
	})
	select {
	case r := <-result:
		key, _ := r.Val.(atcrypto.PublicKey)
		return key, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// remember stores the outcome of a fetch. Only certainty replaces a key.
func (c *keyCache) remember(did syntax.DID, key atcrypto.PublicKey, err error) {
	switch {
	case err == nil:
		c.keys.Add(did, cachedKey{key: key, fetched: c.now()})
		c.failures.Remove(did)
	case errors.Is(err, ErrIssuer):
		c.keys.Remove(did)
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(noKeyFor)})
	case errors.Is(err, ErrBusy):
		// Nothing was asked, so nothing was learnt.
	default:
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(failedFor)})
	}
}
