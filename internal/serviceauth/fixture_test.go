package serviceauth_test

import (
	"errors"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/clock"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

const (
	service = syntax.DID("did:web:mls.example.com")
	send    = syntax.NSID("blue.catbird.mls.sendMessage")
	read    = syntax.NSID("blue.catbird.mls.getMessages")
)

// fixture is a Validator with its directory, its replay store and a fixed clock.
type fixture struct {
	*serviceauth.Validator
	dir     *authtest.Directory
	replays *authtest.Replays
	now     time.Time
	clock   clock.Offset
	from    string // the address that requests come from
}

func newFixture(tb testing.TB, ids ...*authtest.Identity) *fixture {
	tb.Helper()
	f := &fixture{dir: authtest.NewDirectory(tb, ids...), replays: &authtest.Replays{}, now: time.Unix(1_800_000_000, 0)}
	v, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service),
		Directory: f.dir,
		Replays:   f.replays,
		Urgent:    send,
		Now:       func() time.Time { return f.now },
		Clock:     &f.clock,
	})
	if err != nil {
		tb.Fatal(err)
	}
	f.Validator = v
	return f
}

// call validates as a procedure (send) or a query (anything else) would.
func (f *fixture) call(tb testing.TB, authorization string, nsid syntax.NSID) (syntax.DID, error) {
	tb.Helper()
	return f.callAs(tb, authorization, nsid, nsid == send)
}

// callAs validates the token, and uses it up if it is for a procedure.
func (f *fixture) callAs(tb testing.TB, authorization string, nsid syntax.NSID, procedure bool) (syntax.DID, error) {
	tb.Helper()
	token, err := f.Validate(tb.Context(), f.from, authorization, nsid, procedure, nil)
	if err == nil && procedure {
		err = token.Use(tb.Context())
	}
	if err != nil {
		return "", err
	}
	return token.Caller, nil
}

// wantCaller fails the test unless the token passes and its caller is did.
func (f *fixture) wantCaller(tb testing.TB, authorization string, nsid syntax.NSID, did syntax.DID) {
	tb.Helper()
	if got, err := f.call(tb, authorization, nsid); err != nil || got != did {
		tb.Fatalf("Validate = %q, %v; want %q", got, err, did)
	}
}

// wantRefused fails the test unless the token is refused for reason.
func (f *fixture) wantRefused(tb testing.TB, authorization string, nsid syntax.NSID, reason string) {
	tb.Helper()
	did, err := f.call(tb, authorization, nsid)
	var invalid *serviceauth.InvalidError
	if did != "" || !errors.As(err, &invalid) || invalid.Reason != reason {
		tb.Fatalf("Validate = %q, %v; want reason %q", did, err, reason)
	}
}
