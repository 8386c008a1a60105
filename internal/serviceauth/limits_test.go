package serviceauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// webFixture is a directory of did:web accounts that have verified.
type webFixture struct {
	*CachedDirectory
	t   *testing.T
	web *source
	key atcrypto.PublicKey
}

func newWebFixture(t *testing.T) *webFixture {
	t.Helper()
	f := &webFixture{t: t, key: publicKey(t)}
	f.web = newSource(&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		ident := identity.Identity{DID: syntax.DID("did:web:" + r.URL.Host), Keys: map[string]identity.VerificationMethod{
			"atproto": {Type: "Multikey", PublicKeyMultibase: f.key.Multibase()},
		}}
		body, err := json.Marshal(ident.DIDDocument())
		if err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(body)))}, nil
	})}, webLookups())
	f.CachedDirectory = newCachedDirectory(time.Now, (&resolver{web: f.web}).key, nil)
	return f
}

// account returns an account one of whose tokens has verified, as one that verified long ago.
func (f *webFixture) account(host string) syntax.DID {
	did := syntax.DID("did:web:" + host)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verified.Add(did, cachedKey{key: f.key, fetched: time.Now().Add(-2 * keyFresh), stored: true})
	return did
}

// S4: accounts of one domain that verified before use up their domain's look-ups, and nobody else's,
// by their sessions and by their tokens.
func TestKnownAccountsOfOneDomain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newWebFixture(t)
		sessions, tokens := 0, 0
		for i := range 1200 {
			did := f.account(fmt.Sprintf("user%d.attacker.com", i))
			if _, err := f.Current(t.Context(), did, fmt.Sprint("attacker", i)); err == nil {
				sessions++
			} else if !errors.Is(err, ErrBusy) {
				t.Fatal(err)
			}
			if _, err := f.Resolve(t.Context(), f.account(fmt.Sprintf("token%d.attacker.com", i))); err == nil {
				tokens++
			}
		}
		domain := webLookups().domain.Burst
		if sessions != currentOfDomain.Burst || tokens != domain-sessions {
			t.Errorf("%d look-ups of sessions and %d of tokens, want %d and %d", sessions, tokens, currentOfDomain.Burst,
				domain-currentOfDomain.Burst)
		}
		if _, err := f.Resolve(t.Context(), f.account("honest.com")); err != nil {
			t.Errorf("a token of another domain: %v", err)
		}
		if _, err := f.Current(t.Context(), f.account("honest.com"), "honest"); err != nil {
			t.Errorf("a session of another domain: %v", err)
		}
		if _, err := f.web.get(t.Context(), lookup{url: "https://new.attacker.com", domain: "attacker.com"}); err != nil {
			t.Errorf("a newcomer of that domain: %v", err)
		}
	})
}

// S6: the look-ups of all sessions together are divided by address. One that is refused is not
// charged to the account.
func TestSessionsAreDividedByAddress(t *testing.T) {
	t.Parallel()
	f := newCacheFixture(t)
	asked := 0
	for i := range 3000 {
		did := syntax.DID(fmt.Sprintf("did:plc:%024d", i))
		switch _, err := f.Current(t.Context(), did, "attacker"); {
		case err == nil:
			asked++
		case !errors.Is(err, ErrSpent):
			t.Fatal(err)
		}
	}
	if asked != currentOfAddress.Burst {
		t.Errorf("%d look-ups for one address, want %d", asked, currentOfAddress.Burst)
	}
	for range 2 * currentOfDID.Burst { // none of these is charged to alice
		if _, err := f.Current(t.Context(), alice, "attacker"); !errors.Is(err, ErrSpent) {
			t.Fatalf("from the attacker's address: %v", err)
		}
	}
	for range currentOfDID.Burst {
		if _, err := f.Current(t.Context(), alice, "honest"); err != nil {
			t.Fatalf("from another address: %v", err)
		}
	}
	if _, err := f.Current(t.Context(), alice, "honest"); !errors.Is(err, ErrOften) {
		t.Errorf("beyond the account's own: %v", err)
	}
	for i := range currentOfMethod.Burst { // all that is left, from many addresses
		_, _ = f.Current(t.Context(), syntax.DID(fmt.Sprintf("did:plc:many%020d", i)), fmt.Sprint(i))
	}
	const bob = syntax.DID("did:plc:bbbbbbbbbbbbbbbbbbbbbbbb")
	for range 2 * currentOfDID.Burst {
		if _, err := f.Current(t.Context(), bob, "bob"); !errors.Is(err, ErrBusy) || errors.Is(err, ErrOften) {
			t.Fatalf("beyond those of all: %v", err)
		}
	}
	f.now = f.now.Add(time.Second)
	if _, err := f.Current(t.Context(), bob, "bob"); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// S4: once tarpits of accounts that verified before have been slow, they get only the slots that
// unverified accounts share.
func TestTarpitsThatVerified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSource(&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "honest.example" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		})}, webLookups())
		var wg sync.WaitGroup
		defer wg.Wait()
		tarpits := func(domains int) {
			for i := range domains * int(s.domains.Share) {
				domain := fmt.Sprintf("tarpit%d.example", i%domains)
				wg.Go(func() {
					_, err := s.get(context.WithoutCancel(t.Context()), lookup{url: "https://" + domain, domain: domain, known: true})
					if err == nil {
						t.Error("the tarpit has answered")
					}
				})
			}
			synctest.Wait()
		}
		honest := lookup{url: "https://honest.example", domain: "honest.example", known: true}
		tarpits(8)
		if _, err := s.get(t.Context(), honest); err != nil {
			t.Errorf("beside 32 tarpits on 8 domains: %v", err)
		}
		wg.Wait()
		tarpits(16)
		wg.Wait() // all have been slow
		tarpits(20)
		if _, err := s.get(t.Context(), honest); err != nil {
			t.Errorf("beside tarpits on 20 domains, 16 of which were slow: %v", err)
		}
	})
}
