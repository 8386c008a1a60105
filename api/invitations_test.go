package api_test

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/internal/tombstone"
	"mlsd/mls"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

// front is a world's address in the network. Its handler can be changed between calls.
type front struct {
	url   string
	calls atomic.Int64

	mu     sync.Mutex // guards handle
	handle http.HandlerFunc
}

// answers makes the front answer so; nil: as the world does.
func (f *front) answers(handle http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handle = handle
}

// open gives worlds addresses, and publishes the keys of their DID documents.
func (r *registry) open(worlds ...*world) (fronts []*front) {
	r.t.Helper()
	for _, w := range worlds {
		f := &front{}
		web := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, q *http.Request) {
			f.calls.Add(1)
			f.mu.Lock()
			handle := f.handle
			f.mu.Unlock()
			if handle == nil {
				handle = w.server.ServeHTTP
			}
			handle(a, q)
		}))
		r.t.Cleanup(web.Close)
		f.url = web.URL
		document := w.answer(w.server, httptest.NewRequest(http.MethodGet, "/.well-known/did.json", nil)).ok()
		for _, m := range read[struct {
			VerificationMethod []struct{ ID, PublicKeyMultibase string }
		}](r.t, document).VerificationMethod {
			if strings.HasSuffix(m.ID, "#atproto") {
				key, err := atcrypto.ParsePublicMultibase(m.PublicKeyMultibase)
				if err != nil {
					r.t.Fatal(err)
				}
				w.directory.Publish(w.self, key)
			}
		}
		r.mu.Lock()
		r.fronts[w.self] = f
		r.mu.Unlock()
		fronts = append(fronts, f)
	}
	return fronts
}

// sender is the sender of a world's node. The clock is of the pauses between calls.
func (w *world) sender(now func() time.Time) *network.Sender {
	w.t.Helper()
	log, metrics := slog.New(slog.NewTextHandler(testLog{w}, nil)), api.NewMetrics(prometheus.NewRegistry())
	return network.NewSender(network.SenderConfig{
		Network: w.network, DB: w.db, Writes: idem.New(w.db, metrics, log, w.faults), Metrics: metrics, Log: log,
		Faults: w.faults, Jitter: func(longest time.Duration) time.Duration { return longest }, Now: now,
	})
}

// deliver lets a sender do what is due.
func (w *world) deliver(s *network.Sender) {
	w.t.Helper()
	if err := s.RunOnce(w.t.Context()); err != nil {
		w.t.Error(err)
	}
}

// invites makes a convo of u's service with o, whose home is another one.
func (u *user) invites(home *world, o *user, options ...mlstest.Option) (convo string, ref mls.KeyPackageRef) {
	u.w.t.Helper()
	o.at(home).publish(options...)
	refs, receipts := u.abroad(home, o)
	in := u.creation(newGroup(u.w.t))
	in.InitialMembers, in.WelcomeMessage, in.Receipts = []syntax.DID{o.did()}, mlstest.Welcome(u.w.t, refs...), receipts
	return read[mlsapi.ConvoView](u.w.t, u.post(mlsapi.NSIDCreateConvo, in).ok()).ID, refs[0]
}

func (u *user) invitations(params ...string) mlsapi.GetInvitationsOutput {
	u.w.t.Helper()
	return read[mlsapi.GetInvitationsOutput](u.w.t, u.get(mlsapi.NSIDGetInvitations, params...).ok())
}

// neighbours are two services that know each other, Alice of the first and Bob of the second.
func neighbours(t testing.TB, more ...syntax.DID) (r *registry, worlds []*world, alice, bob *user) {
	t.Helper()
	r, worlds = newRegistry(t, append([]syntax.DID{service, "did:web:mls.example.net"}, more...)...)
	alice, bob = worlds[0].user(), worlds[1].user()
	r.lives(alice, worlds[0])
	r.lives(bob, worlds[1])
	return r, worlds, alice, bob
}

// Bob's home learns of the Welcome at Alice's service. He sees the invitation, his KeyPackage is
// consumed, and he answers. The next invitation of Alice's is no request: his device is called.
func TestInvitationToAnotherService(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	s := here.sender(nil)
	convo, ref := alice.invites(there, bob)
	here.deliver(s)
	got := bob.invitations()
	if len(got.Invitations) != 1 || got.Cursor != nil {
		t.Fatalf("%+v", got)
	}
	i := got.Invitations[0]
	if i.Service != here.self || i.ConvoID != convo || i.Inviter != alice.did() || i.DeviceID != bob.deviceID() ||
		i.KeyPackageRef != ref.String() || i.Epoch != 1 || i.State != "open" || i.Request == nil || i.ExpiresAt == nil {
		t.Errorf("%+v", i)
	}
	if n := there.count(`SELECT count(*) FROM key_packages WHERE did = $1 AND state = 'consumed'`, bob.did()); n != 1 {
		t.Errorf("%d KeyPackages are consumed", n)
	}
	if n := there.count(`SELECT count(*) FROM outbox WHERE did = $1 AND kind = 10 AND detail ->> 'convoId' = $2`,
		bob.did(), convo); n != 1 {
		t.Errorf("%d events", n)
	}
	here.deliver(s)
	if n := at.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}

	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: convo}).ok()
	bob.post(mlsapi.NSIDDeclineInvitation, &mlsapi.DeclineInvitationInput{Service: here.self, ConvoID: uuid.NewString()}).
		fails(http.StatusNotFound, "InvitationNotFound")
	if n := there.used("domain:example.com"); n != 0 {
		t.Errorf("after an accepted invitation %d count", n)
	}
	there.exec(`INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		VALUES ($1, $2, 'webhook', 'https://push.example.com', now(), gen_random_uuid())`, bob.did(), bob.deviceID())
	alice.invites(there, bob)
	here.deliver(s)
	got = bob.invitations("limit", "1")
	if i := got.Invitations[0]; len(got.Invitations) != 1 || got.Cursor == nil || i.ConvoID == convo || i.Request != nil {
		t.Errorf("the newest page: %+v", got)
	}
	if n := there.count(`SELECT count(*) FROM push_jobs WHERE did = $1`, bob.did()); n != 1 {
		t.Errorf("%d calls of Bob's device", n)
	}
	got = bob.invitations("limit", "1", "cursor", *got.Cursor)
	i = got.Invitations[0]
	if len(got.Invitations) != 1 || got.Cursor != nil || i.ConvoID != convo || i.State != "accepted" {
		t.Errorf("the last page: %+v", got)
	}
	bob.get(mlsapi.NSIDGetInvitations, "cursor", "x").fails(http.StatusBadRequest, "InvalidCursor")
}

// An invitation whose answer is lost, or whose sender ends between the answer and its record, is
// delivered again, and is there once.
func TestInvitationIsThereOnce(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	here.faulty = true
	at := r.open(here, there)[1]
	at.answers(func(_ http.ResponseWriter, q *http.Request) {
		there.server.ServeHTTP(httptest.NewRecorder(), q)
		panic(http.ErrAbortHandler)
	})
	now := time.Now()
	s := here.sender(func() time.Time { return now })
	alice.invites(there, bob)
	here.deliver(s)
	at.answers(nil)
	here.deliver(s) // the home is paused
	if n := at.calls.Load(); n != 1 {
		t.Fatalf("%d calls", n)
	}
	now = now.Add(time.Minute)
	pgtest.Age(t, here.db, "sent_invitations", time.Minute)
	failpointtest.Arm(t, here.faults, failpoint.AfterWork, idem.NSIDInvitation, failpoint.Error)
	here.deliver(s)
	pgtest.Age(t, here.db, "sent_invitations", time.Hour)
	pgtest.Age(t, here.db, "idempotency_keys", time.Hour)
	here.deliver(s)
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE state = 'done'`); n != 1 || at.calls.Load() != 3 {
		t.Errorf("%d are done, after %d calls", n, at.calls.Load())
	}
	if got := bob.invitations(); len(got.Invitations) != 1 {
		t.Errorf("%+v", got)
	}
	if n := there.used("domain:example.com"); n != 1 {
		t.Errorf("%d were counted", n)
	}
}

// A home that is away is called again and again, less and less often, for a week. It gets the
// invitation when it is back. After a week the job ends.
func TestHomeAway(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	at.answers(func(a http.ResponseWriter, _ *http.Request) { a.WriteHeader(http.StatusBadGateway) })
	now := time.Now()
	s := here.sender(func() time.Time { return now })
	alice.invites(there, bob)
	pause := func() time.Duration {
		return time.Duration(here.count(`
			SELECT (1000 * extract(epoch FROM next_attempt_at - clock_timestamp()))::bigint
			FROM sent_invitations`)) * time.Millisecond
	}
	var pauses []time.Duration
	for range 14 {
		here.deliver(s)
		pauses = append(pauses, pause().Round(2*time.Second))
		now = now.Add(2 * time.Hour)
		pgtest.Age(t, here.db, "sent_invitations", 2*time.Hour)
		pgtest.Age(t, here.db, "idempotency_keys", 2*time.Hour)
	}
	if n := at.calls.Load(); n != 14 {
		t.Errorf("%d calls", n)
	}
	if !slices.IsSorted(pauses) || pauses[0] > 2*time.Second || pauses[13] != time.Hour {
		t.Errorf("the pauses: %v", pauses)
	}
	at.answers(nil)
	here.deliver(s)
	if got := bob.invitations(); len(got.Invitations) != 1 {
		t.Errorf("%+v", got)
	}

	at.answers(func(a http.ResponseWriter, _ *http.Request) { // it asks for a pause
		a.Header().Set("Retry-After", "600")
		a.WriteHeader(http.StatusTooManyRequests)
	})
	id, _ := alice.invites(there, bob)
	here.deliver(s)
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE next_attempt_at > now() + interval '599 s'`); n != 1 {
		t.Errorf("%d wait as long as their home asks", n)
	}
	pgtest.Age(t, here.db, "sent_invitations", 7*24*time.Hour)
	if n := pgtest.Sweep(t, network.Sweeps(here.db)...)["sent_invitations_given_up"]; n != 1 {
		t.Errorf("%d were given up", n)
	}
	here.deliver(s)
	if n := here.count(`
		SELECT count(*) FROM sent_invitations WHERE state = 'dead' AND last_error LIKE 'status 429%'`); n != 1 {
		t.Errorf("%d are dead", n)
	}
	if got := alice.sees(&convo{id: id}, map[string]*user{"bob": bob}); got != "bob failed" {
		t.Errorf("the inviter sees %q", got)
	}
}

// A home that does not answer takes one place, and no other home waits for it.
func TestHangingHome(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org")
	here, hangs, well := worlds[0], worlds[1], worlds[2]
	fronts := r.open(worlds...)
	carol := well.user()
	r.lives(carol, well)
	for range 3 {
		alice.invites(hangs, bob)
	}
	alice.invites(well, carol)
	reached, released, delivered := make(chan struct{}, 10), make(chan struct{}), make(chan struct{})
	fronts[1].answers(func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-released
	})
	fronts[2].answers(func(a http.ResponseWriter, q *http.Request) {
		well.server.ServeHTTP(a, q)
		close(delivered)
	})
	s := here.sender(nil)
	ended := make(chan struct{})
	go func() {
		here.deliver(s)
		close(ended)
	}()
	<-reached
	<-delivered
	select {
	case <-ended:
		t.Error("the home does not hang")
	default:
	}
	close(released)
	<-ended
	if n := fronts[1].calls.Load(); n != 1 {
		t.Errorf("%d calls of a home that was never called before", n)
	}
}

// peerKey is the key of peer: the same one, because tests at once publish it.
var peerKey = sync.OnceValue(func() *atcrypto.PrivateKeyP256 {
	key, err := atcrypto.GeneratePrivateKeyP256()
	if err != nil {
		panic(err)
	}
	return key
})

// peer is a delivery service with a key of its own, which calls w.
func (w *world) peer() *user {
	w.t.Helper()
	id := &authtest.Identity{DID: peer, Key: peerKey()}
	w.directory.Publish(peer, id.PublicKey(w.t))
	return &user{Identity: id, w: w}
}

// invited is a person of w with an invitation to a convo of the service peer.
func (w *world) invited() (bob *user, in *mlsapi.DeliverInvitationInput) {
	w.t.Helper()
	bob = w.user()
	in = w.user().delivery(bob, bob.publish(mlstest.LastResort))
	w.peer().post(mlsapi.NSIDDeliverInvitation, in).ok()
	return bob, in
}

// delivery is an invitation as a service delivers it.
func (u *user) delivery(o *user, ref mls.KeyPackageRef) *mlsapi.DeliverInvitationInput {
	return &mlsapi.DeliverInvitationInput{
		Kind: "invited", ConvoID: uuid.NewString(), Inviter: u.did(), Recipient: o.did(), DeviceID: o.deviceID(),
		KeyPackageRef: ref.String(), CipherSuite: mlstest.Suite.String(), Epoch: 1,
	}
}

// Only a delivery service can deliver an invitation, and only one for a KeyPackage that its inviter
// has claimed here and that no other Welcome has used.
func TestRefusedInvitations(t *testing.T) {
	t.Parallel()
	_, worlds, alice, bob := neighbours(t, peer)
	there := worlds[1]
	evil := there.peer()
	mallory := worlds[0].user()
	ref := bob.publish()
	refs, _ := alice.abroad(there, bob)
	type input = mlsapi.DeliverInvitationInput
	refuse := func(what string, status int, name, message string, change func(*input)) {
		t.Helper()
		in := alice.delivery(bob, refs[0])
		change(in)
		before := there.digest()
		if m := evil.post(mlsapi.NSIDDeliverInvitation, in).fails(status, name); !strings.Contains(m, message) {
			t.Errorf("%s: %q, want %q", what, m, message)
		}
		if there.digest() != before {
			t.Errorf("%s: something has changed", what)
		}
	}
	refuse("a forged inviter", 400, "InvalidInvitation", "has not claimed",
		func(in *input) { in.Inviter = mallory.did() })
	refuse("an unknown ref", 404, "KeyPackageNotFound", "",
		func(in *input) { in.KeyPackageRef = "00ff" })
	refuse("another device", 404, "KeyPackageNotFound", "",
		func(in *input) { in.DeviceID = "another" })
	refuse("another person", 404, "KeyPackageNotFound", "",
		func(in *input) { in.Recipient = mallory.did() })
	refuse("another suite", 404, "KeyPackageNotFound", "",
		func(in *input) { in.CipherSuite = "MLS_128_DHKEMP256_AES128GCM_SHA256_P256" })
	refuse("an unknown kind", 400, "InvalidInvitation", "knows invited, withdrawn and ended",
		func(in *input) { in.Kind = "moved" })
	refuse("no convo", 400, "InvalidRequest", "convoId",
		func(in *input) { in.ConvoID = "x" })
	alice.at(there).post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, ref)).fails(403, "NotPermitted")

	in := alice.delivery(bob, ref)
	token := evil.authorization(mlsapi.NSIDDeliverInvitation)
	there.do(http.MethodPost, mlsapi.NSIDDeliverInvitation, nil, encode(in), token).ok()
	there.do(http.MethodPost, mlsapi.NSIDDeliverInvitation, nil, encode(in), token).fails(401, "InvalidToken")
	evil.post(mlsapi.NSIDDeliverInvitation, in).ok()
	refuse("a used KeyPackage", 400, "InvalidInvitation", "consumed by another Welcome", func(*input) {})
	if got := bob.invitations(); len(got.Invitations) != 1 || got.Invitations[0].Service != peer {
		t.Errorf("%+v", got)
	}

	last := bob.publish(mlstest.LastResort)
	for range 2 { // a last-resort KeyPackage has any number of uses
		evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).ok()
	}
	if got := bob.invitations(); len(got.Invitations) != 3 {
		t.Errorf("%+v", got)
	}

	there.mode = accounts.ModeClosed // whom it admits does not matter for services
	there.server = there.boot()
	evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).ok()

	there.trusts("did:web:mls.example.edu")
	evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).fails(403, "NotPermitted")
}

// A receipt of one KeyPackage is used at two services. Neither can know of the other, so both take
// it. The home takes the first invitation and refuses the second one by its name. Then the inviter
// at the second service learns that the Welcome failed, and adds the person with another
// KeyPackage.
func TestReceiptAtTwoServices(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org")
	here, there, second := worlds[0], worlds[1], worlds[2]
	r.open(worlds...)
	people := map[string]*user{"bob": bob}
	bob.publish()
	refs, receipts := alice.abroad(there, bob)
	convos := map[*world]*convo{}
	for _, w := range []*world{here, second} {
		in := alice.creation(newGroup(t))
		in.InitialMembers, in.WelcomeMessage, in.Receipts = []syntax.DID{bob.did()}, mlstest.Welcome(t, refs...), receipts
		view := read[mlsapi.ConvoView](t, alice.at(w).post(mlsapi.NSIDCreateConvo, in).ok())
		convos[w] = &convo{id: view.ID, group: must(hex.DecodeString(in.GroupID))(w), epoch: view.Epoch}
		w.deliver(w.sender(nil))
	}
	bob.expect("by one KeyPackage", "open ", "new ")
	if i := bob.invitations().Invitations[0]; i.Service != here.self || i.ConvoID != convos[here].id {
		t.Errorf("invited to %+v", i)
	}
	arrivals := func(w *world) int {
		return w.count(`SELECT count(*) FROM outbox WHERE kind = 8 AND did = $1 AND detail ->> 'by' = $2
			AND detail ->> 'change' = 'failed' AND (detail ->> 'epoch')::bigint = 1`, alice.did(), bob.did())
	}
	for w, want := range map[*world]struct {
		said, state, status string
		arrivals            int
	}{
		here:   {"", "done", "bob available", 0},
		second: {"refused: status 400 InvalidInvitation: the KeyPackage was consumed", "dead", "bob failed", 1},
	} {
		var state, said string
		err := w.db.QueryRow(t.Context(), `SELECT state, coalesce(last_error, '') FROM sent_invitations`).Scan(&state, &said)
		if err != nil || state != want.state || !strings.HasPrefix(said, want.said) {
			t.Errorf("the invitation of %s is %s: %q, %v", w.self, state, said, err)
		}
		if got := alice.at(w).sees(convos[w], people); got != want.status || arrivals(w) != want.arrivals {
			t.Errorf("at %s the inviter sees %q, and %d events", w.self, got, arrivals(w))
		}
	}

	alice.at(second).remove(convos[second], bob)
	alice.at(second).adds(convos[second], there, bob)
	second.deliver(second.sender(nil))
	bob.expect("by another KeyPackage", "open open ", "new new ")
	if n := second.count(`SELECT count(*) FROM sent_invitations WHERE state = 'dead'`); n != 1 {
		t.Errorf("after the second invitation %d have failed", n)
	}
}

// A service that delivers too many invitations to outsiders has to wait. Those for which somebody has
// claimed a KeyPackage, and those for which only the service stands, have budgets of their own.
func TestInvitationBudgets(t *testing.T) {
	t.Parallel()
	_, worlds, alice, bob := neighbours(t, peer)
	there := worlds[1]
	there.limits = quota.Defaults()
	there.server = there.boot()
	evil, last := there.peer(), bob.publish(mlstest.LastResort)
	evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).ok()
	there.exec(`UPDATE invitation_budgets SET used = per_day, counted_at = clock_timestamp()`)
	a := evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last))
	a.fails(http.StatusTooManyRequests, "RateLimitExceeded")
	if s, _ := strconv.Atoi(a.header.Get("Retry-After")); s < 3600 || s > 4320 { // a 20th of a day
		t.Errorf("Retry-After: %d", s)
	}
	evil.post(mlsapi.NSIDDeliverInvitation, alice.at(there).claims(bob)).ok()
	pgtest.Age(t, there.db, "invitation_budgets", 2*time.Hour)
	evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).ok()
}

// claims is an invitation with a KeyPackage that was claimed.
func (u *user) claims(o *user) *mlsapi.DeliverInvitationInput {
	u.w.t.Helper()
	o.publish()
	return u.delivery(o, u.claim(o)[0])
}

// A block between the claim and the invitation: the home takes it, and nobody sees it. A block
// afterwards hides it.
func TestBlockedInvitation(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(here, there)
	carol := here.user()
	r.lives(carol, here)
	alices, _ := alice.invites(there, bob)
	carol.invites(there, bob)
	bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}).ok()
	s := here.sender(nil)
	here.deliver(s)
	here.deliver(s)
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE state = 'done' AND last_error IS NULL`); n != 2 {
		t.Errorf("%d were taken", n)
	}
	if n := there.count(`SELECT count(*) FROM key_packages WHERE state = 'consumed'`); n != 2 {
		t.Errorf("%d KeyPackages are consumed", n)
	}
	if n := there.count(`SELECT count(*) FROM outbox WHERE kind = 10`); n != 1 {
		t.Errorf("%d events", n)
	}
	if got := bob.invitations(); len(got.Invitations) != 1 || got.Invitations[0].Inviter != carol.did() {
		t.Errorf("%+v", got)
	}
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: alices}).
		fails(http.StatusNotFound, "InvitationNotFound")
	bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: carol.did()}).ok()
	if got := bob.invitations(); len(got.Invitations) != 0 {
		t.Errorf("%+v", got)
	}
}

// An erasure deletes the invitations that a person has got, and puts a tombstone in place of its
// name into those of others. An export has both.
func TestErasedInvitations(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(here, there)
	carol := there.user()
	r.lives(carol, there)
	alice.invites(there, bob)
	alice.invites(there, carol)
	s := here.sender(nil)
	here.deliver(s)
	here.deliver(s)
	for _, at := range []*user{bob, alice.at(there), alice, bob.at(here)} {
		if len(at.export("received_invitations", "received_invitations made", "sent_invitations",
			"sent_invitations made")) == 0 {
			t.Errorf("the export of %s has no invitation", at.did())
		}
	}
	erase := func(w *world, did syntax.DID) {
		t.Helper()
		p := tombstone.Person{DID: did, Salt: tombstone.NewSalt()}
		for {
			var n int64
			err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) (err error) {
				n, err = network.Erase(context.Background(), tx, p, 1)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				return
			}
		}
	}
	erase(there, bob.did())
	erase(there, alice.did())
	erase(here, alice.did())
	if n := there.count(`SELECT count(*) FROM received_invitations WHERE did = $1`, bob.did()); n != 0 {
		t.Errorf("%d of Bob's are left", n)
	}
	if got := carol.invitations(); len(got.Invitations) != 1 || !tombstone.Is(got.Invitations[0].Inviter) {
		t.Errorf("%+v", got)
	}
	if n := here.count(`SELECT count(*) FROM sent_invitations`); n != 0 {
		t.Errorf("%d that Alice has sent are left", n)
	}
}

// export returns the rows of parts of the person's export.
func (u *user) export(parts ...string) (rows []string) {
	u.w.t.Helper()
	var cursor []string
	for {
		page := read[mlsapi.ExportMyDataOutput](u.w.t, u.get(mlsapi.NSIDExportMyData, cursor...).ok())
		for _, row := range page.Records {
			if slices.Contains(parts, row.Type) {
				rows = append(rows, row.Type)
			}
		}
		if page.Cursor == nil {
			return rows
		}
		cursor = []string{"cursor", *page.Cursor}
	}
}
