package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

const alice = syntax.DID("did:plc:aaaaaaaaaaaaaaaaaaaaaaaa")

// cacheFixture is a CachedDirectory whose fetches return what the test sets.
type cacheFixture struct {
	*CachedDirectory
	now     time.Time
	key     atcrypto.PublicKey
	err     error
	fetches int
}

func newCacheFixture(t *testing.T) *cacheFixture {
	t.Helper()
	f := &cacheFixture{now: time.Unix(1_800_000_000, 0), key: publicKey(t)}
	f.CachedDirectory = newCachedDirectory(func() time.Time { return f.now },
		func(context.Context, syntax.DID, bool) (atcrypto.PublicKey, error) {
			f.fetches++
			return f.key, f.err
		}, nil)
	return f
}

func publicKey(t *testing.T) atcrypto.PublicKey {
	t.Helper()
	private, err := atcrypto.GeneratePrivateKeyK256()
	if err != nil {
		t.Fatal(err)
	}
	key, err := private.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// want fails the test unless Resolve returns key and err, after fetches calls of fetch in all.
func (f *cacheFixture) want(t *testing.T, key atcrypto.PublicKey, err error, fetches int) {
	t.Helper()
	got, gotErr := f.Resolve(t.Context(), alice)
	if got != key || !errors.Is(gotErr, err) || f.fetches != fetches {
		t.Fatalf("Resolve = %v, %v after %d fetches; want %v, %v after %d", got, gotErr, f.fetches, key, err, fetches)
	}
}

func TestKeyCache(t *testing.T) {
	t.Parallel()
	f := newCacheFixture(t)
	first, second, outage := f.key, publicKey(t), errors.New("connection refused")
	f.want(t, first, nil, 1)
	f.key = second
	f.want(t, first, nil, 1)
	f.now = f.now.Add(keyFresh)
	f.want(t, second, nil, 2)

	// During an outage the key stays in use for a day. It is fetched again every failedFor.
	f.key, f.err = nil, outage
	f.want(t, second, nil, 2)
	f.now = f.now.Add(keyFresh)
	f.want(t, second, nil, 3)
	f.want(t, second, nil, 3)
	f.now = f.now.Add(failedFor)
	f.want(t, second, nil, 4)
	f.now = f.now.Add(keyStale)
	f.want(t, nil, outage, 5)

	// The outage ends. Then the account is deleted.
	f.now = f.now.Add(failedFor)
	f.key, f.err = second, nil
	f.want(t, second, nil, 6)
	f.now = f.now.Add(keyFresh)
	f.key, f.err = nil, fmt.Errorf("%w: status 410", ErrIssuer)
	f.want(t, nil, ErrIssuer, 7)
	f.want(t, nil, ErrIssuer, 7)
	f.now = f.now.Add(noKeyFor)
	f.key, f.err = first, nil
	f.want(t, first, nil, 8)
}

// After a refresh that fails, the known key stays in use. After one with ErrIssuer it does not.
func TestKeyCacheRefresh(t *testing.T) {
	t.Parallel()
	f := newCacheFixture(t)
	key := f.key
	f.want(t, key, nil, 1)
	for i, outage := range []error{errors.New("connection refused"), ErrBusy} {
		f.key, f.err = nil, outage
		if _, err := f.Refresh(t.Context(), alice); !errors.Is(err, outage) {
			t.Errorf("Refresh: %v, want %v", err, outage)
		}
		f.want(t, key, nil, i+2)
	}
	f.err = ErrIssuer
	if _, err := f.Refresh(t.Context(), alice); !errors.Is(err, ErrIssuer) {
		t.Errorf("Refresh: %v, want ErrIssuer", err)
	}
	f.want(t, nil, ErrIssuer, 4)
}

// Simultaneous calls share one look-up. If the call that started it is cancelled, the others still
// succeed, and no failure is remembered.
func TestKeyCacheCoalesces(t *testing.T) {
	t.Parallel()
	key := publicKey(t)
	synctest.Test(t, func(t *testing.T) { testCoalesces(t, key) })
}

func testCoalesces(t *testing.T, key atcrypto.PublicKey) {
	started, finish := make(chan struct{}), make(chan struct{})
	var fetches atomic.Int32
	c := newCachedDirectory(time.Now, func(ctx context.Context, _ syntax.DID, _ bool) (atcrypto.PublicKey, error) {
		fetches.Add(1)
		close(started)
		select {
		case <-finish:
			return key, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	leader := make(chan error)
	go func() {
		_, err := c.Resolve(ctx, alice)
		leader <- err
	}()
	<-started
	cancel()
	if err := <-leader; !errors.Is(err, context.Canceled) {
		t.Errorf("leader: %v, want canceled", err)
	}
	others := make(chan error)
	for range 10 {
		go func() {
			got, err := c.Resolve(t.Context(), alice)
			if got != key {
				err = errors.Join(err, errors.New("not the key"))
			}
			others <- err
		}()
	}
	synctest.Wait() // all of them wait for the look-up
	close(finish)
	for range 10 {
		if err := <-others; err != nil {
			t.Error(err)
		}
	}
	if got := fetches.Load(); got != 1 {
		t.Errorf("%d fetches, want 1", got)
	}
}
