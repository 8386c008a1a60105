package serviceauth_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// plc is a PLC directory on loopback.
type plc struct {
	mu      sync.Mutex
	keys    map[syntax.DID]string // multibase
	lookups map[syntax.DID]int
}

// newNode returns a Validator whose directory asks the PLC directory that is returned with it.
func newNode(t *testing.T, ids ...*authtest.Identity) (*fixture, *plc, *serviceauth.CachedDirectory) {
	t.Helper()
	p := &plc{keys: map[syntax.DID]string{}, lookups: map[syntax.DID]int{}}
	for _, id := range ids {
		p.keys[id.DID] = id.PublicKey(t).Multibase()
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	f := newFixture(t)
	dir, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: server.URL,
		Now: func() time.Time { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	f.Validator, err = serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: dir, Replays: f.replays, Urgent: send,
		Now: func() time.Time { return f.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, p, dir
}

func (p *plc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	did := syntax.DID(strings.TrimPrefix(r.URL.Path, "/"))
	p.mu.Lock()
	p.lookups[did]++
	key, ok := p.keys[did]
	p.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	ident := identity.Identity{DID: did, Keys: map[string]identity.VerificationMethod{
		"atproto": {Type: "Multikey", PublicKeyMultibase: key},
	}}
	_ = json.NewEncoder(w).Encode(ident.DIDDocument())
}

// asked returns how many look-ups there were, of all DIDs or of one.
func (p *plc) asked(did syntax.DID) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if did != "" {
		return p.lookups[did]
	}
	for _, of := range p.lookups {
		n += of
	}
	return n
}

// H4: an address that forges tokens of made-up DIDs spends its own budget of look-ups. All accounts
// that are new to the node are served, from any other address.
func TestForgerLeavesLookups(t *testing.T) {
	t.Parallel()
	const forged, honest = 1200, 100
	var ids []*authtest.Identity
	for range honest {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f, p, _ := newNode(t, ids...)
	mallory := authtest.NewIdentity(t)
	spent := 0
	for i := range forged {
		f.from = "forger"
		mallory.DID = authtest.NewIdentity(t).DID
		if _, err := f.call(t, mallory.Authorization(t, string(service), string(send), f.now), send); errors.Is(err,
			serviceauth.ErrSpent) {
			spent++
		}
		if i%12 == 0 { // an honest account comes between
			id := ids[i/12]
			f.from = "honest"
			f.wantCaller(t, id.Authorization(t, string(service), string(send), f.now), send, id.DID)
		}
	}
	if got := p.asked("") - honest; got > 50 {
		t.Errorf("%d look-ups for the forger, want 50 at most", got)
	}
	if spent == 0 {
		t.Error("the forger never got ErrSpent")
	}
	// Ten seconds later the address has its budget again.
	f.from, f.now = "forger", f.now.Add(10*time.Second)
	if _, err := f.call(t, mallory.Authorization(t, string(service), string(send), f.now), send); errors.Is(err,
		serviceauth.ErrSpent) {
		t.Error("the budget does not come back")
	}
}

// H4: 25 addresses that forge tokens of made-up DIDs leave half of the look-ups to newcomers at
// addresses that do not.
func TestForgersOfManyAddresses(t *testing.T) {
	t.Parallel()
	var ids []*authtest.Identity
	for range 100 {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f, _, _ := newNode(t, ids...)
	mallory := authtest.NewIdentity(t)
	busy := 0
	for i := range 25 * 60 {
		f.from = "forger " + strconv.Itoa(i%25)
		mallory.DID = syntax.DID("did:plc:" + strings.Map(func(digit rune) rune { return digit - '0' + 'a' },
			fmt.Sprintf("%024d", i)))
		if _, err := f.call(t, mallory.Authorization(t, string(service), string(send), f.now), send); errors.Is(err,
			serviceauth.ErrBusy) {
			busy++
		}
	}
	if busy == 0 {
		t.Error("the forgers never used up what they share")
	}
	for i, id := range ids {
		f.from = "newcomer " + strconv.Itoa(i)
		f.wantCaller(t, id.Authorization(t, string(service), string(send), f.now), send, id.DID)
	}
}

// H4: all users of a PDS share its address. Hundreds that are new to the node are served at once.
func TestPDSOfNewUsers(t *testing.T) {
	t.Parallel()
	var ids []*authtest.Identity
	for range 300 {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f, p, _ := newNode(t, ids...)
	f.from = "pds"
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := w; i < len(ids); i += 20 {
				if did, err := f.call(t, ids[i].Authorization(t, string(service), string(send), f.now), send); err != nil ||
					did != ids[i].DID {
					t.Errorf("user %d: %q, %v", i, did, err)
				}
			}
		})
	}
	wg.Wait()
	if got := p.asked(""); got != len(ids) {
		t.Errorf("%d look-ups, want %d", got, len(ids))
	}
}

// H4: bad signatures of accounts that exist, which cause look-ups too, spend the address's budget.
// S11: beyond it the answer is not that the signature is wrong.
func TestBadSignaturesSpendTheBudget(t *testing.T) {
	t.Parallel()
	const most, budget = 10, 50
	var ids []*authtest.Identity
	for range 60 {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f, p, _ := newNode(t, ids...)
	f.from = "honest"
	for _, id := range ids {
		f.wantCaller(t, id.Authorization(t, string(service), string(send), f.now), send, id.DID)
	}
	f.from = "forger"
	mallory := authtest.NewIdentity(t)
	for i, id := range ids {
		want := serviceauth.ErrRefresh
		switch {
		case i < most:
			f.wantRefused(t, forge(t, id, mallory, f), send, badSignature)
			continue
		case i >= budget:
			want = serviceauth.ErrSpent
		}
		if _, err := f.call(t, forge(t, id, mallory, f), send); !errors.Is(err, want) {
			t.Fatalf("the %d. bad signature: %v, want %v", i+1, err, want)
		}
	}
	if got := p.asked("") - len(ids); got != most {
		t.Errorf("%d refreshes, want %d", got, most)
	}
}

// S11: 20 addresses forge 180 tokens per second of accounts that verified before. An account that
// has replaced its key is served.
func TestRotationBesideForgers(t *testing.T) {
	t.Parallel()
	const seconds, addresses, perSecond = 5, 20, 180
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	ids := []*authtest.Identity{alice}
	for range seconds * perSecond {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f, p, _ := newNode(t, ids...)
	f.from = "honest"
	for _, id := range ids {
		f.wantCaller(t, id.Authorization(t, string(service), string(send), f.now), send, id.DID)
	}
	alice.Key = authtest.P256(t)
	p.mu.Lock()
	p.keys[alice.DID] = alice.PublicKey(t).Multibase()
	p.mu.Unlock()
	for i := range seconds * perSecond {
		f.from = strconv.Itoa(i % addresses)
		if _, err := f.call(t, forge(t, ids[1+i], mallory, f), send); err == nil {
			t.Fatal("a forged token passed")
		}
		f.now = f.now.Add(time.Second / perSecond)
	}
	f.from = "honest"
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now), send, alice.DID)
}

// After Forget a replaced key dies at once, even for a query's token that passed before.
func TestForgetEndsVerifiedTokens(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f, p, dir := newNode(t, alice)
	token := alice.Authorization(t, string(service), string(read), f.now)
	f.wantCaller(t, token, read, alice.DID)
	p.mu.Lock()
	p.keys[alice.DID] = authtest.NewIdentity(t).PublicKey(t).Multibase()
	p.mu.Unlock()
	f.wantCaller(t, token, read, alice.DID) // nobody has said that the key changed
	if err := dir.Forget(t.Context(), alice.DID); err != nil {
		t.Fatal(err)
	}
	f.wantRefused(t, token, read, badSignature)
	f.wantRefused(t, token, read, badSignature)
}
