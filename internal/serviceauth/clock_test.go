package serviceauth_test

import (
	"errors"
	"testing"
	"time"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// G3: while this node's clock and the database's differ too much, a token whose times look wrong is
// not refused as the caller's fault. A token that is wrong by any clock still is.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	for _, ahead := range []time.Duration{95 * time.Second, -95 * time.Second, time.Hour, -time.Hour} {
		f := newFixture(t, alice)
		callers := f.now.Add(ahead) // the callers' clocks agree with the database's
		token := func(changes ...authtest.Change) string {
			return alice.Authorization(t, string(service), string(send), callers, changes...)
		}
		callersFault := "token has expired"
		if ahead > 0 {
			callersFault = "iat or nbf is in the future"
		}
		f.wantRefused(t, token(), send, callersFault)
		f.clock.Measure(f.now, callers, f.now)
		if _, err := f.call(t, token(), send); !errors.Is(err, serviceauth.ErrClock) {
			t.Errorf("%v ahead: %v, want ErrClock", ahead, err)
		}
		f.wantRefused(t, token(authtest.Claim("aud", "did:web:other.example")), send, "aud is not this service")
		f.clock.Measure(f.now, f.now, f.now)
		f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now), send, alice.DID)
	}
}
