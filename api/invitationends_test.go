package api_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/network"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/mls"
)

// adds adds a person of another service to a convo.
func (u *user) adds(c *convo, home *world, o *user, options ...mlstest.Option) {
	u.w.t.Helper()
	o.at(home).publish(options...)
	refs, receipts := u.abroad(home, o)
	in := u.adding(c, o, refs, receipts)
	c.epoch = read[mlsapi.AddMembersOutput](u.w.t, u.post(mlsapi.NSIDAddMembers, in).ok()).NewEpoch
}

// told are the states of a person's invitations, the oldest first, and of their events.
func (u *user) told() (states, events string) {
	u.w.t.Helper()
	for _, i := range u.invitations().Invitations {
		states = i.State + " " + states
	}
	rows, err := u.w.db.Query(u.w.t.Context(), `
		SELECT coalesce(detail ->> 'change', 'new') || ' ' FROM outbox WHERE kind = 10 AND did = $1 ORDER BY id`, u.did())
	if err != nil {
		u.w.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		u.w.t.Fatal(err)
	}
	for _, e := range all {
		events += e
	}
	return states, events
}

// expect checks what a person was told.
func (u *user) expect(when, states, events string) {
	u.w.t.Helper()
	if s, e := u.told(); s != states || e != events {
		u.w.t.Errorf("%s: the states are %q, and the events %q; want %q and %q", when, s, e, states, events)
	}
}

// The home learns that a person was removed, that the convo was closed, reset or deleted, each
// once. A last-resort KeyPackage brings the person into any number of convos, and into one of them
// again.
func TestInvitationEnds(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	s := here.sender(nil)
	c := alice.create()
	alice.adds(c, there, bob, mlstest.LastResort)
	here.deliver(s)
	bob.expect("invited", "open ", "new ")
	alice.remove(c, bob)
	here.deliver(s)
	bob.expect("removed", "withdrawn ", "new withdrawn ")
	here.deliver(s)
	if n := at.calls.Load(); n != 2 {
		t.Errorf("%d calls", n)
	}

	alice.adds(c, there, bob, mlstest.LastResort) // the KeyPackage is the same one
	here.deliver(s)
	bob.expect("invited again", "withdrawn open ", "new withdrawn new ")
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: c.id}).ok()
	here.inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := convos.Close(ctx, tx, uuid.MustParse(c.id))
		return err
	})
	here.deliver(s)
	bob.expect("closed", "withdrawn ended ", "new withdrawn new ended ")

	d, e := alice.create(), alice.create()
	for _, c := range []*convo{d, e} {
		alice.adds(c, there, bob, mlstest.LastResort)
		here.deliver(s)
	}
	here.deleteConvo(d)
	here.deliver(s)
	bob.at(here).post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: e.id}).ok()
	here.deliver(s)
	bob.expect("deleted, and left", "withdrawn ended ended withdrawn ", "new withdrawn new ended new new ended withdrawn ")
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE state <> 'done'`); n != 0 {
		t.Errorf("%d are not done", n)
	}
}

// inTx runs what an operator does.
func (w *world) inTx(f func(ctx context.Context, tx pgx.Tx) error) {
	w.t.Helper()
	ctx := context.Background()
	if err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error { return f(ctx, tx) }); err != nil {
		w.t.Fatal(err)
	}
}

// A reset closes the convo for those who have not joined, too.
func TestInvitationIsReset(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(here, there)
	s := here.sender(nil)
	c := alice.create()
	alice.adds(c, there, bob)
	here.deliver(s)
	alice.phone().resets(c)
	here.deliver(s)
	bob.expect("reset", "ended ", "new ended ")
}

// An invitation can end before the home has it, or while it is being delivered. Nobody sees it
// then, or it ends as any other one.
func TestInvitationEndsBeforeItArrives(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	at := r.open(here, there)[1]
	s := here.sender(nil)
	c := alice.create()
	alice.adds(c, there, bob)
	alice.remove(c, bob)
	here.deliver(s)
	bob.expect("removed before", "", "")
	if n := there.count(`SELECT count(*) FROM key_packages WHERE state = 'consumed'`); n != 1 || at.calls.Load() != 1 {
		t.Errorf("%d KeyPackages are consumed, after %d calls", n, at.calls.Load())
	}

	alice.adds(c, there, bob)
	at.answers(func(a http.ResponseWriter, q *http.Request) {
		at.answers(nil)
		there.server.ServeHTTP(a, q)
		alice.remove(c, bob)
	})
	here.deliver(s)
	bob.expect("removed meanwhile", "open ", "new ")
	here.deliver(s)
	bob.expect("and told", "withdrawn ", "new withdrawn ")
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE state = 'done' AND kind = 'withdrawn'`); n != 2 {
		t.Errorf("%d are done", n)
	}
}

// What a service says of an invitation can arrive in any order, and several times.
func TestInvitationEndsInAnyOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, evil := w.user(), w.user(), w.peer()
	say := func(in *mlsapi.DeliverInvitationInput, kinds ...string) {
		t.Helper()
		for _, kind := range kinds {
			in.Kind = kind
			evil.post(mlsapi.NSIDDeliverInvitation, in).ok()
		}
	}
	claimed := func() mls.KeyPackageRef { bob.publish(); return alice.claim(bob)[0] }
	say(alice.delivery(bob, claimed()), "withdrawn", "invited", "withdrawn", "ended", "invited")
	bob.expect("withdrawn first", "", "")
	say(alice.delivery(bob, claimed()), "invited", "ended", "ended", "withdrawn", "invited")
	bob.expect("ended", "ended ", "new ended ")

	third := alice.delivery(bob, claimed())
	say(third, "invited")
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: peer, ConvoID: third.ConvoID}).ok()
	w.exec(`DELETE FROM key_packages`) // the home has forgotten it
	w.exec(`DELETE FROM idempotency_keys WHERE nsid = $1`, mlsapi.NSIDGetKeyPackages)
	say(third, "withdrawn", "withdrawn")
	bob.expect("after the acceptance", "ended withdrawn ", "new ended new withdrawn ")
	third.Kind = "invited"
	evil.post(mlsapi.NSIDDeliverInvitation, third).fails(http.StatusNotFound, "KeyPackageNotFound")
	if n := w.count(`SELECT count(*) FROM received_invitations WHERE state = 'accepted'`); n != 1 {
		t.Error("the answer is gone")
	}

	last := bob.publish(mlstest.LastResort)
	fourth := alice.delivery(bob, last)
	fourth.ExpiresAt = lexcodec.Pointer(lexcodec.NewDatetime(time.Now().Add(time.Hour)))
	say(fourth, "invited")
	bob.expect("before it expires", "ended withdrawn open ", "new ended new withdrawn new ")
	pgtest.Age(t, w.db, "received_invitations", 2*time.Hour)
	bob.expect("expired", "ended withdrawn withdrawn ", "new ended new withdrawn new ")
}

// A last-resort KeyPackage has no claim that shows who the inviter is: its invitation is a request,
// also of somebody whom the person knows, and pushes nothing.
func TestLastResortIsARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, evil := w.user(), w.user(), w.peer()
	alice.accept(bob.create(alice))
	w.exec(`INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		VALUES ($1, $2, 'webhook', 'https://push.example.com', now(), gen_random_uuid())`, bob.did(), bob.deviceID())
	deliver := func(ref mls.KeyPackageRef) (request bool) {
		t.Helper()
		evil.post(mlsapi.NSIDDeliverInvitation, alice.delivery(bob, ref)).ok()
		return bob.invitations().Invitations[0].Request != nil
	}
	before := bob.jobs()
	if !deliver(bob.publish(mlstest.LastResort)) || bob.jobs() != before {
		t.Errorf("by a last resort it is no request, or pushed: %d jobs", bob.jobs()-before)
	}
	bob.publish()
	if request := deliver(alice.claim(bob)[0]); request || bob.jobs() == before {
		t.Errorf("by a claimed one: a request %v, %d jobs", request, bob.jobs()-before)
	}
}

// The home learns that an invitation has ended although its inviter was erased meanwhile.
func TestErasedInviterEndsInvitations(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(here, there)
	s := here.sender(nil)
	c := alice.create()
	alice.adds(c, there, bob)
	here.deliver(s)
	alice.remove(c, bob)
	here.inTx(func(ctx context.Context, tx pgx.Tx) error {
		n, err := network.Erase(ctx, tx, tombstone.Person{DID: alice.did(), Salt: tombstone.NewSalt()}, 100)
		if n != 1 {
			t.Errorf("%d invitations were erased or changed", n)
		}
		return err
	})
	if n := here.count(`SELECT count(*) FROM sent_invitations WHERE inviter = $1`, alice.did()); n != 0 {
		t.Errorf("%d invitations name her", n)
	}
	here.deliver(s)
	bob.expect("removed", "withdrawn ", "new withdrawn ")
}
