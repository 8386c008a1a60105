package serviceauth_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

const replayed = "token was used before"

func TestReplay(t *testing.T) {
	t.Parallel()
	alice, bob := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice, bob)

	post := alice.Authorization(t, string(service), string(send), f.now, authtest.Claim("jti", "1"))
	f.wantCaller(t, post, send, alice.DID)
	f.wantRefused(t, post, send, replayed)
	// The jti decides, not the whole token. Another caller may use the same jti.
	f.wantRefused(t, alice.Authorization(t, string(service), string(send), f.now, authtest.Claim("jti", "1"),
		authtest.Claim("x", 1)), send, replayed)
	f.wantCaller(t, bob.Authorization(t, string(service), string(send), f.now, authtest.Claim("jti", "1")), send, bob.DID)

	get := alice.Authorization(t, string(service), string(read), f.now)
	f.wantCaller(t, get, read, alice.DID)
	f.wantCaller(t, get, read, alice.DID)

	// A procedure also uses up a token that a query left in the cache.
	for i, want := range []string{"", replayed} {
		_, err := f.callAs(t, get, read, true)
		var invalid *serviceauth.InvalidError
		if errors.As(err, &invalid) != (want != "") || invalid != nil && invalid.Reason != want {
			t.Errorf("consuming, time %d: %v", i+1, err)
		}
	}
}

// A remembered token passes only for its method and until it expires.
func TestCachedTokenIsCheckedAgain(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	get := alice.Authorization(t, string(service), string(read), f.now)
	f.wantCaller(t, get, read, alice.DID)
	f.dir.Fail(errors.New("not to be asked"))
	f.wantRefused(t, get, "blue.catbird.mls.getConvos", "lxm is not this method")
	f.wantCaller(t, get, read, alice.DID)
	f.now = f.now.Add(65 * time.Second)
	f.wantRefused(t, get, read, "token has expired")
	f.wantRefused(t, get, read, "token has expired")
	if got := f.dir.Lookups(); got != 1 {
		t.Errorf("%d look-ups, want 1", got)
	}
}

func TestConcurrentUsePassesOnce(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	post := alice.Authorization(t, string(service), string(send), f.now)
	var passed atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := f.call(t, post, send); err == nil {
				passed.Add(1)
			}
		})
	}
	wg.Wait()
	if passed.Load() != 1 {
		t.Errorf("%d passed, want 1", passed.Load())
	}
}

// If the store of used tokens fails, no procedure runs. Queries still run.
func TestReplayStoreFailsClosed(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	f.replays.Fail(errors.New("connection refused"))
	if did, err := f.call(t, alice.Authorization(t, string(service), string(send), f.now), send); did != "" ||
		!errors.Is(err, serviceauth.ErrUnavailable) {
		t.Errorf("procedure: %q, %v, want ErrUnavailable", did, err)
	}
	f.wantCaller(t, alice.Authorization(t, string(service), string(read), f.now), read, alice.DID)
}

// Named case sub-impersonation: a sub must not replace iss as the caller.
func TestSubImpersonation(t *testing.T) {
	t.Parallel()
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice, mallory)
	for _, name := range []string{"sub", "act", "client_id", "did"} {
		f.wantCaller(t, mallory.Authorization(t, string(service), string(send), f.now, authtest.Claim(name, alice.DID)), send,
			mallory.DID)
	}
}

// Named case replay-before-auth, as far as this package goes. A token that does not verify names no
// caller and uses no jti up. So a forger of alice's token learns nothing and cannot use up her real
// token.
func TestReplayBeforeAuth(t *testing.T) {
	t.Parallel()
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice, mallory)
	jti := authtest.Claim("jti", "known-to-mallory")
	forged := mallory.Authorization(t, string(service), string(send), f.now, jti, authtest.Claim("iss", alice.DID))
	f.wantRefused(t, forged, send, badSignature)
	if got := f.replays.Len(); got != 0 {
		t.Fatalf("a forged token used up %d", got)
	}
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now, jti), send, alice.DID)
	f.wantRefused(t, forged, send, badSignature) // "used before" would reveal that the jti is used
}
