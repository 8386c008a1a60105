package api_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/transparency"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/operator"
	"mlsd/people/accounts"
)

// eraser erases accounts of a world. It needs no stream until it has come to the events.
func (w *world) eraser() *erasure.Worker {
	store := accounts.NewStore(0, convos.HandOver)
	return erasure.NewWorker(erasure.Config{
		DB: w.db, Log: slog.New(slog.DiscardHandler), Jobs: erasure.NewStore(store), Accounts: store,
		Remover: convos.NewRemover(w.db, nil, transparency.Purge, attachments.Purge),
		Forget:  func(context.Context, syntax.DID) error { return nil },
		Tell:    w.network.TellErasure, EraseActions: operator.EraseActions, KeyRest: time.Millisecond,
	})
}

// erases begins an erasure as an operator does.
func (w *world) erases(did syntax.DID) (show func() erasure.Erasure) {
	w.t.Helper()
	jobs := erasure.NewStore(accounts.NewStore(0, convos.HandOver))
	var e erasure.Erasure
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		e.ID, _, err = jobs.Begin(ctx, tx, did, "operator olga", "ticket 4711")
		return err
	})
	return func() erasure.Erasure {
		w.t.Helper()
		e, err := jobs.Get(w.t.Context(), w.db, e.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		return e
	}
}

// An erasure at home is told to the services where the person has accepted invitations. They erase the
// person too. The job says which of them could not be reached, and goes on.
func TestErasureIsToldToOtherServices(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org", "did:web:mls.example.edu")
	there, well, away, distrusts := worlds[1], worlds[0], worlds[2], worlds[3]
	fronts := r.open(worlds...)
	for _, w := range []*world{well, away, distrusts} {
		convo, _ := alice.at(w).invites(there, bob)
		w.deliver(w.sender(nil))
		bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: w.self, ConvoID: convo}).ok()
	}
	distrusts.trusts("")
	fronts[2].answers(func(a http.ResponseWriter, _ *http.Request) { a.WriteHeader(http.StatusBadGateway) })
	called := fronts[2].calls.Load()

	show, eraser := there.erases(bob.did()), there.eraser()
	round := func() {
		t.Helper()
		pgtest.Age(t, there.db, "erasures", 2*time.Minute)
		if err := eraser.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if e := show(); e.Step != "other services" {
		t.Errorf("it does not wait for the service that is away: %+v", e)
	}
	round()
	round()
	want := map[syntax.DID]string{well.self: erasure.Told, away.self: erasure.NotReached, distrusts.self: erasure.Refused}
	if e := show(); !maps.Equal(e.Services, want) || e.Step == "other services" {
		t.Errorf("got %+v", e)
	}
	if n := fronts[2].calls.Load() - called; n != 3 {
		t.Errorf("the service that is away was called %d times", n)
	}
	if n := there.count(`SELECT count(*) FROM received_invitations`); n != 0 {
		t.Errorf("%d invitations are left", n)
	}
	if n := well.count(`SELECT count(*) FROM erasures WHERE did = $1 AND requested_by = 'home'`, bob.did()); n != 1 {
		t.Errorf("%d erasures at the other service", n)
	}
	pgtest.Age(t, well.db, "erasures", time.Minute)
	if err := well.eraser().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := well.count(`SELECT count(*) FROM members WHERE did = $1 AND left_at IS NULL`, bob.did()); n != 0 {
		t.Errorf("he is in %d convos there", n)
	}
}

// No transaction is open while a service is asked, however long it takes. Another node does not ask
// meanwhile, unless the first one's lease is over: then the outcome of the first one is dropped.
func TestErasureHoldsNoTransaction(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	there, slow := worlds[1], worlds[0]
	front := r.open(worlds...)[0]
	convo, _ := alice.invites(there, bob)
	slow.deliver(slow.sender(nil))
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: slow.self, ConvoID: convo}).ok()
	asked, released := make(chan struct{}, 2), make(chan struct{})
	front.answers(func(a http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-released
		a.WriteHeader(http.StatusBadGateway)
	})
	show, ended := there.erases(bob.did()), make(chan error)
	pgtest.Age(t, there.db, "erasures", time.Minute)
	go func() { ended <- there.eraser().RunOnce(t.Context()) }()
	<-asked
	if n := there.count(`
		SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()`); n != 0 {
		close(released)
		t.Fatalf("%d transactions are open; then %v", n, <-ended)
	}
	round := func() {
		t.Helper()
		if err := there.eraser().RunOnce(t.Context()); err != nil {
			t.Error(err)
		}
	}
	round()
	if n := len(asked); n != 0 {
		t.Errorf("another node has asked %d times", n)
	}

	front.answers(nil)
	pgtest.Age(t, there.db, "erasures", 2*time.Minute)
	round()
	if got := show().Services[slow.self]; got != erasure.Told {
		t.Errorf("after the lease the other node stores %q", got)
	}
	close(released)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := show().Services[slow.self]; got != erasure.Told {
		t.Errorf("the late outcome of the first node is stored: %q", got)
	}
}

// A service erases a person for the person's home alone, once, and only if it has the person.
func TestErasureByHome(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	here.mode = accounts.ModeOpen
	here.server = here.boot()
	r.open(here, there)
	carol, dan, eve := there.user(), there.user(), there.user()
	r.lives(carol, here)
	r.lives(dan, there)
	r.lives(eve, there)
	for _, o := range []*user{bob, carol, eve} {
		in := alice.creation(newGroup(t))
		in.InitialMembers = append(in.InitialMembers, o.did())
		alice.post(mlsapi.NSIDCreateConvo, in).ok()
	}
	here.block(eve)
	erasures := func() int { return here.count(`SELECT count(*) FROM erasures`) }
	tell := func(what string, o *user, refused bool, jobs int) {
		t.Helper()
		got, err := there.network.TellErasure(t.Context(), here.self, o.did())
		if got != refused || (err != nil) != refused || erasures() != jobs {
			t.Errorf("%s: refused %v, %v; %d erasures", what, got, err, erasures())
		}
	}
	tell("a person of another home", carol, true, 0)
	tell("a person who is not here", dan, false, 0)
	tell("a person whom the operator has blocked", eve, true, 0)
	tell("its own", bob, false, 1)
	tell("its own again", bob, false, 1)
	alice.post(mlsapi.NSIDDeliverErasure, &mlsapi.DeliverErasureInput{DID: bob.did()}).
		fails(http.StatusForbidden, "NotPermitted")
}

// N1: a former home cannot erase a person, although it is remembered as the home. If the person's
// record cannot be read now, nothing is done.
func TestErasureByAFormerHome(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org")
	here, old, home := worlds[0], worlds[1], worlds[2]
	r.open(worlds...)
	in := alice.creation(newGroup(t))
	in.InitialMembers = append(in.InitialMembers, bob.did())
	alice.post(mlsapi.NSIDCreateConvo, in).ok()
	r.lives(bob, home)
	r.old = map[syntax.DID]syntax.DID{bob.did(): old.self}
	tell := func(by *world, wantRefused bool, erasures int) {
		t.Helper()
		refused, err := by.network.TellErasure(t.Context(), here.self, bob.did())
		if n := here.count(`SELECT count(*) FROM erasures`); refused != wantRefused || n != erasures {
			t.Errorf("%s: refused %v, %v; %d erasures", by.self, refused, err, n)
		}
	}
	tell(old, true, 0)
	r.fails = serviceauth.ErrBusy
	tell(home, false, 0)
	r.fails = nil
	tell(home, false, 1)
}

// A key that cannot be looked up now, and may have been replaced, erases nobody.
func TestErasureByAStaleKey(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(worlds...)
	bob.at(here).get(mlsapi.NSIDGetConvos).ok() // now both keys are known
	if _, err := there.network.TellErasure(t.Context(), here.self, alice.did()); err == nil {
		t.Error("the erasure of a person of another home is taken")
	}
	here.directory.Fail(serviceauth.ErrHost)
	if refused, err := there.network.TellErasure(t.Context(), here.self, bob.did()); refused || err == nil {
		t.Errorf("the home's erasure: refused %v, %v", refused, err)
	}
	bob.at(here).post(mlsapi.NSIDEraseMyAccount, &mlsapi.EraseMyAccountInput{}).
		fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	bob.at(here).get(mlsapi.NSIDGetConvos).ok()
}
