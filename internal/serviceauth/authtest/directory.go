package authtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth"
)

// Directory is a serviceauth.Directory in memory. Like a real one, it answers from a cache until
// Refresh is called. So tests can rotate keys without its knowledge, and count the look-ups that
// would use the network.
type Directory struct {
	mu      sync.Mutex
	truth   map[syntax.DID]atcrypto.PublicKey
	cache   map[syntax.DID]atcrypto.PublicKey
	lookups int
	failure error
}

// NewDirectory returns a Directory that knows ids.
func NewDirectory(tb testing.TB, ids ...*Identity) *Directory {
	tb.Helper()
	d := &Directory{truth: map[syntax.DID]atcrypto.PublicKey{}, cache: map[syntax.DID]atcrypto.PublicKey{}}
	for _, id := range ids {
		d.Publish(id.DID, id.PublicKey(tb))
	}
	return d
}

// Publish makes key the key of did, for a new account or for an account that rotates its key. It
// does not change the cache.
func (d *Directory) Publish(did syntax.DID, key atcrypto.PublicKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.truth[did] = key
}

// Fail makes look-ups fail with err, until Fail(nil). The cache still answers, with
// stale keys.
func (d *Directory) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = err
}

// Lookups returns the number of look-ups that the cache could not answer.
func (d *Directory) Lookups() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups
}

// Known implements serviceauth.Directory.
func (d *Directory) Known(did syntax.DID) serviceauth.Known {
	d.mu.Lock()
	defer d.mu.Unlock()
	return serviceauth.Known{Key: d.cache[did], Stale: d.failure != nil}
}

// Verified implements serviceauth.Directory.
func (d *Directory) Verified(syntax.DID, atcrypto.PublicKey) {}

// Resolve implements serviceauth.Directory.
func (d *Directory) Resolve(_ context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key, ok := d.cache[did]; ok {
		return key, nil
	}
	return d.lookup(did)
}

// Refresh implements serviceauth.Directory.
func (d *Directory) Refresh(_ context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookup(did)
}

// Current looks did up without the cache. Its version is always 0.
func (d *Directory) Current(_ context.Context, did syntax.DID, _ string) (serviceauth.Identity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key, err := d.lookup(did)
	return serviceauth.Identity{Key: key}, err
}

// lookup looks did up without the cache. The caller holds d.mu.
func (d *Directory) lookup(did syntax.DID) (atcrypto.PublicKey, error) {
	d.lookups++
	if d.failure != nil {
		return nil, d.failure
	}
	key, ok := d.truth[did]
	if !ok {
		delete(d.cache, did)
		return nil, serviceauth.ErrIssuer
	}
	d.cache[did] = key
	return key, nil
}

// Replays is a serviceauth.ReplayStore in memory, for one node. The zero value is ready to use.
type Replays struct {
	mu      sync.Mutex
	used    map[serviceauth.TokenID]time.Time
	failure error
}

// Use implements serviceauth.ReplayStore.
func (r *Replays) Use(_ context.Context, id serviceauth.TokenID, exp time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return r.failure
	}
	if r.used == nil {
		r.used = map[serviceauth.TokenID]time.Time{}
	}
	if _, ok := r.used[id]; ok {
		return serviceauth.ErrReplayed
	}
	r.used[id] = exp
	return nil
}

// Fail makes Use fail with err, until Fail(nil).
func (r *Replays) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

// Len returns the number of used tokens.
func (r *Replays) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.used)
}
