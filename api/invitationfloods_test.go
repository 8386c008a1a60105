package api_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/people/quota"
)

func defaultLimits(w *world) { w.limits = quota.Defaults() }

// used is what a service has used of its budget today.
func (w *world) used(subject string) int {
	return w.count(`SELECT round(used) FROM invitation_budgets WHERE subject = $1`, subject)
}

// A service cannot repeat an invitation to one convo for nothing: each Welcome of it counts for the
// budgets, and for the bound of the service's domain. The devices that one Welcome names count once.
func TestInvitationsToOneConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultLimits)
	alice, bob, evil := w.user(), w.user(), w.peer()
	in := alice.delivery(bob, bob.publish(mlstest.LastResort))
	evil.post(mlsapi.NSIDDeliverInvitation, in).ok()
	bob.publish()
	other := *in // of the same Welcome
	other.KeyPackageRef = alice.claim(bob)[0].String()
	evil.post(mlsapi.NSIDDeliverInvitation, &other).ok()
	if n := w.used("unproven:example.org"); n != 1 {
		t.Errorf("one Welcome counts as %d", n)
	}
	taken := 1
	for a := (answer{status: http.StatusOK}); a.status == http.StatusOK && taken < 50; taken++ {
		in.Epoch++
		a = evil.post(mlsapi.NSIDDeliverInvitation, in)
	}
	if bound := 20; taken-1 != bound {
		t.Errorf("%d invitations to one convo were taken in a day, want %d", taken-1, bound)
	}
	if n := w.used("unproven:example.org"); n != 20 {
		t.Errorf("they count as %d", n)
	}
}

// N3, N10: one account cannot use up the budget of its service, declined requests are its own, and an
// accepted one is given back and adds nothing.
func TestOneAccountHasAPartOfTheBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mallory, alice, evil := w.user(), w.user(), w.peer()
	const domain = "domain:example.org"
	deliver := func(u, to *user) (*mlsapi.DeliverInvitationInput, answer) {
		t.Helper()
		in := u.claims(to)
		return in, evil.post(mlsapi.NSIDDeliverInvitation, in)
	}
	carol := w.user()
	in, _ := deliver(alice, carol)
	carol.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: peer, ConvoID: in.ConvoID}).ok()
	carol.post(mlsapi.NSIDDeclineInvitation, &mlsapi.DeclineInvitationInput{Service: peer, ConvoID: in.ConvoID}).ok()
	if n := w.used(domain); n != 0 {
		t.Errorf("an accepted request counts as %d", n)
	}
	taken := 0
	for ; taken < 20; taken++ {
		bob := w.user()
		in, a := deliver(mallory, bob)
		if a.status != http.StatusOK {
			break
		}
		if taken < 2 {
			bob.post(mlsapi.NSIDDeclineInvitation, &mlsapi.DeclineInvitationInput{Service: peer, ConvoID: in.ConvoID}).ok()
		}
	}
	if n := w.used(domain); taken != 4 || n != 4 {
		t.Errorf("%d requests of an account with two declined ones, which count as %d", taken, n)
	}
	_, a := deliver(alice, w.user())
	a.ok()
}

// N2: whatever a service says in Alice's name does not stop Alice, who has claimed a KeyPackage.
func TestMadeUpInvitationsStopNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultLimits)
	alice, bob, evil := w.user(), w.user(), w.peer()
	last := bob.publish(mlstest.LastResort)
	for range 20 {
		evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).ok()
	}
	evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, last)).fails(http.StatusTooManyRequests, "QuotaExceeded")
	evil.post(mlsapi.NSIDDeliverInvitation, alice.claims(bob)).ok()
}

// What nobody sees takes no place among a person's open invitations: the person could not answer it.
// To leave a convo with a block hides the inviter's invitations too.
func TestBlockFreesOpenInvitations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.limits = quota.Limits{quota.OpenInvitations: 2, quota.OneInviter: 10} })
	alice, bob, evil := w.user(), w.user(), w.peer()
	mallory, mike, molly := w.user(), w.user(), w.user()
	claimed := molly.claims(bob)
	invites := func(u *user) answer { return evil.post(mlsapi.NSIDDeliverInvitation, u.claims(bob)) }
	invites(mallory).ok()
	invites(mike).ok()
	invites(alice).fails(http.StatusTooManyRequests, "QuotaExceeded")
	bob.blocks(mallory)
	bob.blocks(molly)
	evil.post(mlsapi.NSIDDeliverInvitation, claimed).ok() // nobody sees it
	c := mike.create(bob)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, Block: ptr(true)}).ok()
	if got := bob.invitations().Invitations; len(got) != 0 {
		t.Errorf("bob sees %+v", got)
	}
	invites(alice).ok()
	invites(w.user()).ok()
	invites(w.user()).fails(http.StatusTooManyRequests, "QuotaExceeded")
}

// Invitations to one person that arrive at once count each other.
func TestDeliveriesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.limits = quota.Limits{quota.OneInviter: 1} })
	alice, bob, evil := w.user(), w.user(), w.peer()
	evil.post(mlsapi.NSIDDeliverInvitation, w.user().claims(bob)).ok() // begins the budget of the domain
	var inputs []*mlsapi.DeliverInvitationInput
	for range 2 {
		bob.publish()
		inputs = append(inputs, alice.delivery(bob, alice.claim(bob)[0]))
	}
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM invitation_budgets FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	answers := make([]answer, len(inputs))
	var all sync.WaitGroup
	for i, in := range inputs {
		all.Go(func() { answers[i] = evil.post(mlsapi.NSIDDeliverInvitation, in) })
	}
	pgtest.AwaitLockWaits(w.t, w.db, 2) // a caller has no more
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	taken := 0
	for _, a := range answers {
		if a.status == http.StatusOK {
			taken++
		}
	}
	if taken != 1 {
		t.Errorf("%d invitations of one inviter were taken, want 1", taken)
	}
}

// Who sends receipts of people whose hosts do not answer does not hold the look-ups of others.
func TestSlowHomesOfReceipts(t *testing.T) {
	t.Parallel()
	const most = 4
	r, worlds := newRegistry(t, service, peer)
	w := worlds[0]
	alice, bob, carol := w.user(), w.user(), w.user()
	receipt := func(claimant *user) string {
		encoded := base64.RawURLEncoding.EncodeToString
		return encoded([]byte(`{"alg":"ES256","typ":"mls-claim+jwt","kid":"#mls_service_1"}`)) + "." +
			encoded(fmt.Appendf(nil, `{"iss":%q,"sub":%q,"exp":%d,"deviceId":"d",`+
				`"keyPackageRef":"00","cipherSuite":1,"claimant":%q}`,
				peer, w.user().did(), time.Now().Add(time.Minute).Unix(), claimant.did())) + "." + encoded(make([]byte, 64))
	}
	slow := r.hang()
	add := func(u *user, address string) answer {
		in := &mlsapi.AddMembersInput{ConvoID: uuid.NewString(), DIDList: []syntax.DID{bob.did()}, IdempotencyKey: newKey()}
		for range 2 * most {
			in.Receipts = append(in.Receipts, receipt(u))
		}
		q := w.request(http.MethodPost, mlsapi.NSIDAddMembers, nil, encode(in), u.authorization(mlsapi.NSIDAddMembers))
		return w.answerTo(address, q)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() { add(alice, "203.0.113.1") })
	slow.await(most)
	add(alice, "203.0.113.1").fails(http.StatusTooManyRequests, "RateLimitExceeded")
	add(bob, "203.0.113.1").fails(http.StatusBadRequest, "InvalidReceipt")
	add(carol, "203.0.113.2").fails(http.StatusBadRequest, "InvalidReceipt")
	close(slow.released)
	waiting.Wait()
}

// queued inserts jobs for n homes, whose services and hosts the formats make of a number.
func (w *world) queued(n int, service, host string) {
	w.t.Helper()
	w.exec(`
		INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch,
			domain, created_at, queued_at, next_attempt_at)
		SELECT gen_random_uuid(), 'did:web:p.example.com', convert_to($2 || n, 'UTF8'), false, format($2, n), 'd', 1,
			gen_random_uuid(), 'did:web:mallory.example.com', 1, format($3, n), now(), now(), now()
		FROM generate_series(1, $1::int) AS n`, n, service, host)
}

// N5: any number of homes that do not answer, or do not exist, do not keep an invitation waiting,
// whether its home has answered before or is new.
func TestSilentHomesDelayNobody(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org")
	here, there, beyond := worlds[0], worlds[1], worlds[2]
	carol := beyond.user()
	r.lives(carol, beyond)
	fronts := r.open(here, there, beyond)
	s := here.sender(nil)
	alice.invites(there, bob)
	here.deliver(s)
	here.queued(10_000, "did:web:s%s.example.com", "s%s.example")
	alice.invites(there, bob)
	alice.invites(beyond, carol)
	here.deliver(s)
	if known, first := fronts[1].calls.Load(), fronts[2].calls.Load(); known != 2 || first != 1 {
		t.Errorf("the known home got %d calls, want 2; the new one got %d, want 1", known, first)
	}
}

// N5: the calls and the circuit of a host count all services there. Twenty services with 400
// invitations have one host that does not answer: it has one call, and then none for a while.
func TestSilentHostIsOneHome(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	var calls atomic.Int64
	released := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		<-released
		a.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(silent.Close)
	for i := range 20 {
		did := syntax.DID(fmt.Sprintf("did:web:s%d.example.com", i+1))
		r.others[did] = serviceauth.Service{DID: did, Endpoint: silent.URL, Domain: "silent.example"}
		here.queued(20, did.String(), "silent.example")
	}
	here.exec(`UPDATE sent_invitations SET next_attempt_at = now() - interval '1 minute'
		WHERE convert_from(ref, 'UTF8') = service || '1'`) // the first job of each service comes first
	now := time.Now()
	s := here.sender(func() time.Time { return now })
	var round sync.WaitGroup
	round.Go(func() { here.deliver(s) })
	await.Until(t, "the silent host is called", func() bool { return calls.Load() > 0 })
	alice.invites(there, bob)
	second := make(chan struct{})
	go func() { here.deliver(s); close(second) }()
	await.Until(t, "the honest home gets its invitation", func() bool { return at.calls.Load() == 1 })
	close(released)
	round.Wait()
	<-second
	here.exec(`UPDATE sent_invitations SET next_attempt_at = now() WHERE state IN ('pending', 'sending')`)
	here.deliver(s)
	if n := calls.Load(); n != 1 {
		t.Errorf("the silent host got %d calls, want 1", n)
	}
}

// A service that has another host than when its invitation was recorded is called there, under the
// places of that host.
func TestHomeThatMoves(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	alice.invites(there, bob)
	here.exec(`UPDATE sent_invitations SET domain = NULL`) // as an earlier build writes it
	s := here.sender(nil)
	here.deliver(s)
	moved := here.count(`SELECT count(*) FROM sent_invitations WHERE domain = 'example.net'`)
	if n := at.calls.Load(); n != 0 || moved != 1 {
		t.Errorf("%d calls, %d jobs of the new home", n, moved)
	}
	here.exec(`UPDATE sent_invitations SET next_attempt_at = now()`)
	here.deliver(s)
	if n := at.calls.Load(); n != 1 {
		t.Errorf("the home got %d calls, want 1", n)
	}
}

// The same holds for a service that speaks for people whose hosts do not answer.
func TestSlowHomesOfErasures(t *testing.T) {
	t.Parallel()
	const most = 4
	r, worlds := newRegistry(t, service, peer)
	w := worlds[0]
	evil := w.peer()
	people := make([]*user, most+2)
	for i := range people {
		people[i] = w.user()
	}
	slow := r.hang()
	erase := func(i int, address string) answer {
		q := w.request(http.MethodPost, mlsapi.NSIDDeliverErasure, nil,
			encode(&mlsapi.DeliverErasureInput{DID: people[i].did()}), evil.authorization(mlsapi.NSIDDeliverErasure))
		return w.answerTo(address, q)
	}
	var waiting sync.WaitGroup
	for i := range most {
		waiting.Go(func() { erase(i, "203.0.113.1") })
	}
	slow.await(most)
	erase(most, "203.0.113.1").fails(http.StatusTooManyRequests, "RateLimitExceeded")
	home := w.request(http.MethodGet, mlsapi.NSIDGetDeliveryService, url.Values{"did": {people[0].did().String()}}, nil,
		people[most+1].authorization(mlsapi.NSIDGetDeliveryService))
	w.answerTo("203.0.113.1", home).ok()
	close(slow.released)
	waiting.Wait()
}

// N10: text of another service that no column can hold is refused by name.
func TestTextOfOthers(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(worlds...)
	bob.publish()
	refs, _ := alice.abroad(there, bob)
	receipt, err := there.network.Receipts([]keypackages.Claimed{{DID: bob.did(), DeviceID: "a\x00b", Ref: refs[0],
		CipherSuite: mlstest.Suite}}, alice.did(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	alice.post(mlsapi.NSIDAddMembers, alice.adding(alice.create(), bob, refs, receipt)).
		fails(http.StatusBadRequest, "InvalidReceipt")
	in := alice.delivery(bob, refs[0])
	in.DeviceID = "a\x00b"
	if a := here.peer().post(mlsapi.NSIDDeliverInvitation, in); a.status/100 != 4 {
		t.Errorf("an invitation: %d %s", a.status, a.body)
	}
}
