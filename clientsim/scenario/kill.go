package scenario

import (
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// KilledBeforeCommit kills the server right before the COMMIT of each kind of write. Nothing of it
// may remain, and the retry is the first time.
func KilledBeforeCommit(ctx context.Context, w *testbed.World) {
	killedAt(ctx, w, testbed.BeforeCommit)
}

// KilledAfterCommit kills the server between COMMIT and answer. All of it must remain, and the
// retry is a replay of an answer that no client got.
func KilledAfterCommit(ctx context.Context, w *testbed.World) {
	killedAt(ctx, w, testbed.AfterCommit)
}

func killedAt(ctx context.Context, w *testbed.World, point string) {
	phones := must(w.Phones(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	survive(ctx, w, point, alice, must(alice.DraftPublish()))
	packages := must(alice.Claim(ctx, "", testbed.DIDs(phones[1:2])))
	survive(ctx, w, point, alice, must(alice.DraftCreate(testbed.DIDs(phones[1:2]), packages)))
	convo := w.Model.Snapshot()[0].ID
	surviveJoin(ctx, w, point, bob, convo)
	survive(ctx, w, point, bob, must(bob.DraftSend(convo, "the server died of this")))
	check(bob.Sync(ctx, convo))
	packages = must(bob.Claim(ctx, convo, testbed.DIDs(phones[2:])))
	survive(ctx, w, point, bob, must(bob.DraftAdd(convo, testbed.DIDs(phones[2:]), packages)))
	check(carol.Join(ctx, convo))
	surviveCommits(ctx, w, point, carol, convo)
	survive(ctx, w, point, bob, must(bob.DraftLeave(convo)))
	check(carol.CommitRemovals(ctx, convo))
	check(w.SyncAll(ctx, convo, alice, carol))
}

// surviveCommits kills the server at a member's commit, at the commit of a rejoin, and at the
// publication of new KeyPackages.
func surviveCommits(ctx context.Context, w *testbed.World, point string, p *client.Phone, convo string) {
	survive(ctx, w, point, p, must(p.DraftCommit(convo, mlsclient.Change{})))
	check(p.LoseState(true))
	info := must(p.GroupInfo(ctx, convo))
	survive(ctx, w, point, p, must(p.DraftRejoin(convo, info)))
	kp := must(p.Device.KeyPackage())
	survive(ctx, w, point, p, must(p.DraftPublishMany([]mlsclient.KeyPackage{kp})))
}

// survive kills the server at a draft, restarts it, and delivers the draft.
func survive(ctx context.Context, w *testbed.World, point string, p *client.Phone, d *client.Draft) {
	dieOf(ctx, w, point, p, d.Call)
	answer, err := p.Deliver(ctx, d)
	if err != nil {
		fail("%s after a kill %s: %w", d.Call.Method, point, err)
	}
	if want := point == testbed.AfterCommit; answer.Replayed() != want {
		w.Broken("%s retried after a kill %s: replay is %t, want %t", d.Call.Method, point, answer.Replayed(), want)
	}
}

// dieOf arms the failpoint, makes the call, and starts the server again.
func dieOf(ctx context.Context, w *testbed.World, point string, p *client.Phone, call xrpc.Call) {
	w.Progress(fmt.Sprintf("killing the server %s of %s", point, call.Method))
	check(w.Server.Arm(ctx, point, call.Method, "kill"))
	answer, err := w.Net.Once(ctx, p.Account, call)
	if err == nil {
		fail("%s was answered %q by a server that was to be dead", call.Method, answer.Body)
	}
	var named *xrpc.CallError
	if errors.As(err, &named) {
		fail("a server that was to be dead: %w", err)
	}
	check(w.Server.Died(ctx))
	check(w.Server.Start(ctx, nil))
}

// surviveJoin kills the server at the fetch and at the confirmation of a Welcome.
func surviveJoin(ctx context.Context, w *testbed.World, point string, p *client.Phone, convo string) {
	dieOf(ctx, w, point, p, xrpc.WelcomeCall(convo, ""))
	out := must(p.FetchWelcome(ctx, convo))
	check(p.SaveWelcome(out))
	check(p.JoinSaved(convo))
	dieOf(ctx, w, point, p, xrpc.ConfirmCall(convo, *out.KeyPackageRef, true, ""))
	if point == testbed.BeforeCommit {
		again, err := p.FetchWelcome(ctx, convo)
		if err != nil {
			fail("a confirmation that never happened took the Welcome away: %w", err)
		}
		w.CheckSameWelcome(out, again)
	} else {
		w.CheckConsumed(ctx, p, convo)
	}
	check(p.Confirm(ctx, convo))
	_, err := w.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ""))
	if xrpc.ErrorName(err) != mlsapi.ErrWelcomeConsumed {
		w.Broken("confirmed after a kill: %v, want WelcomeConsumed", err)
	}
	check(p.Sync(ctx, convo))
}
