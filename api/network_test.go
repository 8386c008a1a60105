package api_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth"
	"mlsd/mls"
)

// peer is a service that every world knows.
const peer syntax.DID = "did:web:mls.example.org"

// noServices are the services of a world that knows no other ones but peer.
type noServices struct{}

func (noServices) Service(_ context.Context, did syntax.DID, _ time.Duration) (serviceauth.Service, error) {
	if did == peer {
		return serviceauth.Service{DID: did, Endpoint: "https://mls.example.org", Domain: "example.org"}, nil
	}
	return serviceauth.Service{}, serviceauth.ErrNoService
}

// homed is a person whose home is peer.
const homed syntax.DID = "did:web:homed.example.org"

func (noServices) Home(_ context.Context, did syntax.DID, _ time.Duration) (home syntax.DID, err error) {
	if did == homed {
		home = peer
	}
	return home, nil
}

// registry are services that are worlds, and the records of people.
type registry struct {
	t      testing.TB
	mu     sync.Mutex // guards the rest
	worlds map[syntax.DID]*world
	homes  map[syntax.DID]syntax.DID
	fronts map[syntax.DID]*front              // of those that answer over HTTP
	others map[syntax.DID]serviceauth.Service // services that are no worlds
	old    map[syntax.DID]syntax.DID          // what is remembered of homes, and is no longer true
	fails  error                              // of look-ups
	asked  func()                             // is called when a home is looked up
}

// hanging are look-ups that do not end.
type hanging struct {
	asked, released chan struct{}
	over            bool // later look-ups do not hang
}

// hang lets look-ups of homes hang, until they are released.
func (r *registry) hang() *hanging {
	h := &hanging{asked: make(chan struct{}, 64), released: make(chan struct{})}
	r.asked = func() {
		if !h.over {
			h.asked <- struct{}{}
			<-h.released
		}
	}
	return h
}

// await returns when n look-ups hang. Later ones do not.
func (h *hanging) await(n int) {
	for range n {
		<-h.asked
	}
	h.over = true
}

// newRegistry returns worlds with these DIDs. They know each other.
func newRegistry(t testing.TB, dids ...syntax.DID) (*registry, []*world) {
	t.Helper()
	r := &registry{t: t, worlds: map[syntax.DID]*world{}, homes: map[syntax.DID]syntax.DID{},
		fronts: map[syntax.DID]*front{}, others: map[syntax.DID]serviceauth.Service{}}
	var worlds []*world
	for _, did := range dids {
		w := newWorld(t, func(w *world) { w.self, w.services = did, r })
		if len(worlds) > 0 {
			w.directory = worlds[0].directory // of one PLC directory
			w.server = w.boot()
		}
		r.worlds[did] = w
		worlds = append(worlds, w)
	}
	return r, worlds
}

// Service reads the service's DID document.
func (r *registry) Service(_ context.Context, did syntax.DID, _ time.Duration) (s serviceauth.Service, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.worlds[did]
	switch {
	case r.fails != nil:
		return s, r.fails
	case w == nil && r.others[did].DID == did:
		return r.others[did], nil
	case w == nil:
		return s, serviceauth.ErrNoService
	}
	a := httptest.NewRecorder()
	w.server.ServeHTTP(a, httptest.NewRequest(http.MethodGet, "/.well-known/did.json", nil))
	var doc struct {
		VerificationMethod []struct{ ID, PublicKeyMultibase string }
	}
	if err := json.Unmarshal(a.Body.Bytes(), &doc); err != nil {
		return s, err
	}
	s = serviceauth.Service{DID: did, Endpoint: "https://mls.example.com",
		Domain: strings.TrimPrefix(did.String(), "did:web:mls."), Keys: map[string]atcrypto.PublicKey{}}
	if f := r.fronts[did]; f != nil {
		s.Endpoint = f.url
	}
	for _, m := range doc.VerificationMethod {
		if _, id, _ := strings.Cut(m.ID, "#"); strings.HasPrefix(id, "mls_service") {
			if s.Keys["#"+id], err = atcrypto.ParsePublicMultibase(m.PublicKeyMultibase); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

func (r *registry) Home(_ context.Context, did syntax.DID, age time.Duration) (syntax.DID, error) {
	if old, ok := r.old[did]; ok && age > serviceauth.Now {
		return old, nil
	}
	if r.asked != nil {
		r.asked()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.homes[did], r.fails
}

// trusts boots a node whose MLSD_SERVICES is the text.
func (w *world) trusts(text string) {
	w.t.Helper()
	w.trust = new(must(network.ParseTrust(text))(w))
	w.server = w.boot()
}

// at is the same person talking to another service.
func (u *user) at(w *world) *user { return &user{Identity: u.Identity, Device: u.Device, w: w} }

// lives makes a service the person's home.
func (r *registry) lives(u *user, home *world) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.homes[u.did()] = home.self
}

// abroad claims a KeyPackage of each of the others at their home, with receipts.
func (u *user) abroad(home *world, others ...*user) (refs []mls.KeyPackageRef, receipts []string) {
	u.w.t.Helper()
	params := []string{"receipts", "true"}
	for _, o := range others {
		params = append(params, "dids", o.did().String())
	}
	out := read[mlsapi.GetKeyPackagesOutput](u.w.t, u.at(home).get(mlsapi.NSIDGetKeyPackages, params...).ok())
	for _, k := range out.KeyPackages {
		ref, err := hex.DecodeString(*k.KeyPackageRef)
		if err != nil || k.Receipt == nil {
			u.w.t.Fatalf("%+v: %v", k, err)
		}
		refs, receipts = append(refs, ref), append(receipts, *k.Receipt)
	}
	return refs, receipts
}

// adding is the input that adds a person of another service.
func (u *user) adding(c *convo, o *user, refs []mls.KeyPackageRef, receipts []string) *mlsapi.AddMembersInput {
	return &mlsapi.AddMembersInput{
		ConvoID: c.id, IdempotencyKey: newKey(), DIDList: []syntax.DID{o.did()}, Receipts: receipts,
		Commit:         mlstest.Commit(c.group, c.epoch, "add "+o.did().String()+*newKey()),
		WelcomeMessage: mlstest.Welcome(u.w.t, refs...),
	}
}

// Alice's convo is at her service, and Bob's KeyPackages are at his. She claims one there, and her
// service takes it with the receipt. Bob fetches the Welcome at her service, and sends.
func TestConvoAcrossServices(t *testing.T) {
	t.Parallel()
	r, worlds := newRegistry(t, service, "did:web:mls.example.net")
	here, there := worlds[0], worlds[1]
	alice, bob, carol := here.user(), there.user(), there.user()
	r.lives(alice, here)
	r.lives(bob, there)
	r.lives(carol, there)
	for _, o := range []*user{bob, carol} {
		o.publish()
	}
	refs, receipts := alice.abroad(there, bob)
	in := alice.creation(newGroup(t))
	in.InitialMembers, in.WelcomeMessage, in.Receipts = []syntax.DID{bob.did()}, mlstest.Welcome(t, refs...), receipts
	first := alice.post(mlsapi.NSIDCreateConvo, in).ok()
	view := read[mlsapi.ConvoView](t, first)
	group, _ := hex.DecodeString(in.GroupID)
	c := &convo{id: view.ID, group: group, epoch: view.Epoch}

	refs, receipts = alice.abroad(there, carol)
	out := read[mlsapi.AddMembersOutput](t, alice.post(mlsapi.NSIDAddMembers, alice.adding(c, carol, refs, receipts)).ok())
	c.epoch = out.NewEpoch

	for _, o := range []*user{bob, carol} {
		o.at(here).post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).ok()
		o.at(here).get(mlsapi.NSIDGetWelcome, "convoId", c.id, "deviceId", o.deviceID()).ok()
		o.at(here).post(mlsapi.NSIDConfirmWelcome,
			&mlsapi.ConfirmWelcomeInput{ConvoID: c.id, DeviceID: ptr(o.deviceID()), Success: true}).ok()
		o.at(here).send(c, "hello from another service")
	}

	// A repetition gets its first answer, also when the claim is over and the other service is away.
	r.fails = errors.New("the other service is away")
	if again := alice.post(mlsapi.NSIDCreateConvo, in).ok(); string(again) != string(first) {
		t.Errorf("first %s, then %s", first, again)
	}
}

// Each refusal of a receipt has its name, and says what to do. Nothing of the request happens.
func TestReceiptsRefused(t *testing.T) {
	t.Parallel()
	r, worlds := newRegistry(t, service, "did:web:mls.example.net", "did:web:mls.example.org")
	here, there, elsewhere := worlds[0], worlds[1], worlds[2]
	alice, mallory, bob := here.user(), here.user(), there.user()
	r.lives(bob, there)
	c := alice.create()
	stock := func(w *world) { bob.at(w).publish() }
	fresh := func(w *world, by *user) (refs []mls.KeyPackageRef, receipts []string) {
		stock(w)
		return by.abroad(w, bob)
	}
	forge := func(receipt string) string { // with the signature of another service
		parts := strings.Split(receipt, ".")
		stock(elsewhere)
		_, theirs := alice.abroad(elsewhere, bob)
		other := strings.Split(theirs[0], ".")
		return parts[0] + "." + parts[1] + "." + other[2]
	}
	refuse := func(name, wantName, want string, refs []mls.KeyPackageRef, receipts []string) {
		t.Helper()
		before := here.digest()
		a := alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts))
		var e struct{ Error, Message string }
		if err := json.Unmarshal(a.body, &e); err != nil || e.Error != wantName || !strings.Contains(e.Message, want) {
			t.Errorf("%s: %d %s, want %s with %q", name, a.status, a.body, wantName, want)
		}
		if here.digest() != before {
			t.Errorf("%s: something has changed", name)
		}
	}
	refs, receipts := fresh(there, alice)
	refuse("no receipt", "KeyPackageNotFound", "getKeyPackages", refs, nil)
	refuse("not a receipt", "InvalidReceipt", "compact JWS", refs, []string{"x"})
	token := strings.TrimPrefix(alice.Authorization(t, service, mlsapi.NSIDAddMembers, time.Now()), "Bearer ")
	refuse("a token", "InvalidReceipt", "alg ES256", refs, []string{token})
	refuse("forged", "InvalidReceipt", "its signature is not of the key", refs, []string{forge(receipts[0])})
	_, others := fresh(there, mallory)
	refuse("another claimant's", "InvalidReceipt", "it is for the claimant "+mallory.did().String(), refs, others)
	wrong, _ := fresh(there, alice)
	refuse("of another KeyPackage", "KeyPackageNotFound", "", wrong, receipts)
	strange, theirs := fresh(elsewhere, alice)
	refuse("of a service that is not the owner's", "InvalidReceipt", "has not chosen did:web:mls.example.org", strange,
		theirs)
	r.mu.Lock()
	delete(r.worlds, there.self)
	r.mu.Unlock()
	refuse("of no service", "InvalidReceipt", "is no delivery service", refs, receipts)
	r.mu.Lock()
	r.worlds[there.self] = there
	r.mu.Unlock()
	r.fails = serviceauth.ErrHost
	refuse("of a service that cannot be looked up", "ServiceUnavailable", "", refs, receipts)
	r.fails = nil
	here.trusts("did:web:mls.example.edu")
	refuse("of a service that the operator has not chosen", "InvalidReceipt", "has not chosen", refs, receipts)
	here.trusts("all")

	// The key that signed has leaked and is gone: its receipts are refused.
	signed := there.network.Keys()[0]
	there.rotate(true)
	refuse("of a key that is gone", "InvalidReceipt", "has no key "+signed.ID, refs, receipts)

	// Used once, it is used.
	refs, receipts = fresh(there, alice)
	out := read[mlsapi.AddMembersOutput](t, alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts)).ok())
	c.epoch = out.NewEpoch
	second := alice.create()
	a := alice.post(mlsapi.NSIDAddMembers, alice.adding(second, bob, refs, receipts))
	a.fails(http.StatusBadRequest, "InvalidWelcome")
	if !strings.Contains(string(a.body), "has been consumed by another Welcome") {
		t.Errorf("used twice: %s", a.body)
	}
}

// A claim that is repeated gets the same receipts, byte for byte, and one without the parameter none.
func TestReceiptsOfAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.publish()
	bob.publish(mlstest.LastResort)
	params := []string{"dids", bob.did().String(), "receipts", "true", "idempotencyKey", "once"}
	first := alice.get(mlsapi.NSIDGetKeyPackages, params...).ok()
	if again := alice.get(mlsapi.NSIDGetKeyPackages, params...).ok(); string(first) != string(again) {
		t.Errorf("first %s, then %s", first, again)
	}
	plain := alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()).ok()
	if strings.Contains(string(plain), "receipt") {
		t.Errorf("not asked for: %s", plain)
	}
}

// N10: receipts cost what they take, also those of a claim that is repeated.
func TestReceiptsAreCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-6, Burst: 1000} })
	alice := w.user()
	params := []string{"idempotencyKey", "once"}
	for range api.ReceiptsOfUnit + 1 {
		bob := w.user()
		bob.publish()
		params = append(params, "dids", bob.did().String())
	}
	left := func() int {
		t.Helper()
		return number(t, alice.get(mlsapi.NSIDGetBlocks).header.Get("Ratelimit-Remaining"))
	}
	for _, when := range []string{"a claim", "its repetition"} {
		before := left()
		alice.get(mlsapi.NSIDGetKeyPackages, append(params, "receipts", "true")...).ok()
		if cost, want := before-1-left(), 1+2; cost != want {
			t.Errorf("%s: %d units, want %d", when, cost, want)
		}
	}
}

// getDeliveryService answers what the person's record and the service's DID document say.
func TestGetDeliveryService(t *testing.T) {
	t.Parallel()
	r, worlds := newRegistry(t, service)
	alice, bob := worlds[0].user(), worlds[0].user()
	find := func() map[string]string {
		t.Helper()
		return read[map[string]string](t, alice.get(mlsapi.NSIDGetDeliveryService, "did", bob.did().String()).ok())
	}
	want := map[string]string{"did": bob.did().String()}
	if got := find(); !maps.Equal(got, want) {
		t.Errorf("no record: %v", got)
	}
	r.homes[bob.did()] = "did:web:nowhere.example.com"
	want["deliveryService"] = "did:web:nowhere.example.com"
	if got := find(); !maps.Equal(got, want) {
		t.Errorf("a service without a document: %v", got)
	}
	r.lives(bob, worlds[0])
	want["deliveryService"], want["endpoint"] = service, "https://mls.example.com"
	if got := find(); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	r.fails = serviceauth.ErrHost
	alice.get(mlsapi.NSIDGetDeliveryService, "did", bob.did().String()).
		fails(http.StatusServiceUnavailable, "ServiceUnavailable")
}

// A service whose operator has chosen nobody believes, asks and tells no other service, and says so.
// It looks nobody up, and finds its own people. A service that was not chosen is not looked up.
func TestNeighboursAreChosen(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(worlds...)
	bob.publish()
	refs, receipts := alice.abroad(there, bob)
	c := alice.create()
	home := func(u *user) answer { return alice.get(mlsapi.NSIDGetDeliveryService, "did", u.did().String()) }
	evil := here.peer()
	in := alice.delivery(alice, alice.publish(mlstest.LastResort))
	alice.invites(there, bob) // before the operator changes its mind
	asked := 0
	r.asked = func() { asked++ }
	for text, want := range map[string]string{"": "has chosen none (MLSD_SERVICES)", "b.example": "has not chosen"} {
		here.trusts(text)
		asked = 0
		for what, m := range map[string]string{
			"a home": home(bob).fails(http.StatusForbidden, "NotPermitted"),
			"a receipt": alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts)).
				fails(http.StatusBadRequest, "InvalidReceipt"),
			"an invitation": evil.post(mlsapi.NSIDDeliverInvitation, in).fails(http.StatusForbidden, "NotPermitted"),
			"an erasure": evil.post(mlsapi.NSIDDeliverErasure, &mlsapi.DeliverErasureInput{DID: bob.did()}).
				fails(http.StatusForbidden, "NotPermitted"),
		} {
			if !strings.Contains(m, want) {
				t.Errorf("MLSD_SERVICES=%q, %s: %q, want %q", text, what, m, want)
			}
		}
		if text == "" {
			out := read[mlsapi.GetDeliveryServiceOutput](t, home(alice).ok())
			if *out.DeliveryService != here.self || asked > 0 {
				t.Errorf("alice's home is %v, after %d look-ups", out.DeliveryService, asked)
			}
		}
	}
	here.deliver(here.sender(nil))
	if n := at[1].calls.Load(); n != 0 {
		t.Errorf("the service that was not chosen was called %d times", n)
	}
}

// N9: callers behind one address have look-ups of their own. Three whose hosts do not answer refuse
// nobody else's, and the address has a bound.
func TestSlowHomes(t *testing.T) {
	t.Parallel()
	const ofCaller, ofAddress = 4, 24
	r, worlds := newRegistry(t, service)
	w := worlds[0]
	users := make([]*user, ofAddress/ofCaller+2)
	for i := range users {
		users[i] = w.user()
	}
	slow := r.hang()
	find := func(i int, address string) answer {
		q := w.request(http.MethodGet, mlsapi.NSIDGetDeliveryService, url.Values{"did": {users[0].did().String()}}, nil,
			users[i].authorization(mlsapi.NSIDGetDeliveryService))
		return w.answerTo(address, q)
	}
	var waiting sync.WaitGroup
	hang := func(users ...int) {
		for _, i := range users {
			for range ofCaller {
				waiting.Go(func() { find(i, "203.0.113.1").ok() })
			}
		}
		slow.await(ofCaller * len(users))
	}
	hang(0, 1, 2)
	find(0, "203.0.113.1").fails(http.StatusTooManyRequests, "RateLimitExceeded")
	find(3, "203.0.113.1").ok()
	slow.over = false
	hang(3, 4, 5)
	find(6, "203.0.113.1").fails(http.StatusTooManyRequests, "RateLimitExceeded")
	find(7, "203.0.113.2").ok()
	close(slow.released)
	waiting.Wait()
}

// N4: what one caller makes us look up has a rate, and does not take from that of tokens.
func TestFindingHasARate(t *testing.T) {
	t.Parallel()
	_, worlds := newRegistry(t, service)
	w := worlds[0]
	alice, bob := w.user(), w.user()
	find := func(u *user) answer {
		q := w.request(http.MethodGet, mlsapi.NSIDGetDeliveryService, url.Values{"did": {alice.did().String()}}, nil,
			u.authorization(mlsapi.NSIDGetDeliveryService))
		return w.answerTo("203.0.113.1", q)
	}
	n := 0
	for ; n < 1000 && find(alice).status == http.StatusOK; n++ {
	}
	if n < 200 || n == 1000 {
		t.Errorf("%d look-ups of one caller", n)
	}
	find(bob).ok()
}

// rotate replaces the key of a world's service, as the command service-key does.
func (w *world) rotate(leaked bool) {
	w.t.Helper()
	keys := must(network.Rotate(w.keyFile, leaked))(w)
	if newest := must(w.keys.Sync(keys[0].Multikey))(w); newest != keys[0].Multikey {
		w.t.Errorf("the newest key is %s, want %s", newest, keys[0].Multikey)
	}
}

// N8: the DID document has the service's keys, and the one that signs also as #atproto: other
// services verify its requests like those of an account. A new key signs at once. The one before
// stays for the receipts that it has signed, unless it has leaked. None of them comes from the
// database.
func TestDIDDocumentHasTheServiceKeys(t *testing.T) {
	t.Parallel()
	_, worlds := newRegistry(t, service, "did:web:mls.example.net")
	w, taker := worlds[0], worlds[1]
	document := func() map[string]string {
		t.Helper()
		page := w.answer(w.server, httptest.NewRequest(http.MethodGet, "/.well-known/did.json", nil)).ok()
		keys := map[string]string{}
		for _, m := range read[struct {
			VerificationMethod []struct{ ID, PublicKeyMultibase string }
		}](t, page).VerificationMethod {
			if _, id, _ := strings.Cut(m.ID, "#"); !strings.HasPrefix(id, "mlsd_log_") {
				keys["#"+id] = m.PublicKeyMultibase
			}
		}
		return keys
	}
	wantKeys := func(when string, all ...network.Key) {
		t.Helper()
		want := map[string]string{"#atproto": all[0].Multikey}
		for _, k := range all {
			want[k.ID] = k.Multikey
		}
		if got := document(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	alice, bob := taker.user(), w.user()
	worlds[0].services.(*registry).lives(bob, w)
	c := alice.create()
	invite := func() answer {
		t.Helper()
		bob.publish()
		refs, receipts := alice.abroad(w, bob)
		a := alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts))
		c = alice.create()
		return a
	}
	first := w.network.Keys()[0]
	wantKeys("one key", first)
	bob.publish()
	refs, receipts := alice.abroad(w, bob)
	w.rotate(false)
	second := w.network.Keys()[0]
	wantKeys("two keys", second, first)
	alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts)).ok() // signed by the first
	c = alice.create()
	invite().ok()
	w.rotate(true)
	wantKeys("after a leak", w.network.Keys()[0])
	invite().ok()

	w.exec(`INSERT INTO log_keys (seed, public, created_at)
		SELECT sha256(seed), sha256(public), clock_timestamp() FROM log_keys`)
	w.server = w.boot()
	wantKeys("with another key of log heads", w.network.Keys()[0])

	// A node whose file lacks the newest key signs nothing.
	last := w.network.Keys()[0]
	if _, err := w.keys.Sync(second.Multikey); !errors.Is(err, network.ErrNoKey) {
		t.Errorf("a node without the recorded key: %v", err)
	}
	if keys := document(); len(keys) != 0 {
		t.Errorf("it publishes %v", keys)
	}
	bob.publish()
	alice.at(w).get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "receipts", "true").
		fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	must(w.keys.Sync(last.Multikey))(w)
	invite().ok()
}
