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
func KilledBeforeCommit(ctx context.Context, w *testbed.World) error {
	return killedAt(ctx, w, testbed.BeforeCommit)
}

// KilledAfterCommit kills the server between COMMIT and answer. All of it must remain, and the
// retry is a replay of an answer that no client got.
func KilledAfterCommit(ctx context.Context, w *testbed.World) error {
	return killedAt(ctx, w, testbed.AfterCommit)
}

func killedAt(ctx context.Context, w *testbed.World, point string) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	d, err := alice.DraftPublish()
	if err := survive(ctx, w, point, alice, d, err); err != nil {
		return err
	}
	packages, err := alice.Claim(ctx, "", testbed.DIDs(phones[1:2]))
	if err != nil {
		return err
	}
	d, err = alice.DraftCreate(testbed.DIDs(phones[1:2]), packages)
	if err := survive(ctx, w, point, alice, d, err); err != nil {
		return err
	}
	convo := w.Model.Snapshot()[0].ID
	if err := surviveJoin(ctx, w, point, bob, convo); err != nil {
		return err
	}
	d, err = bob.DraftSend(convo, "the server died of this")
	if err := survive(ctx, w, point, bob, d, err); err != nil {
		return err
	}
	if err := bob.Sync(ctx, convo); err != nil {
		return err
	}
	if packages, err = bob.Claim(ctx, convo, testbed.DIDs(phones[2:])); err != nil {
		return err
	}
	d, err = bob.DraftAdd(convo, testbed.DIDs(phones[2:]), packages)
	if err := survive(ctx, w, point, bob, d, err); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := surviveCommits(ctx, w, point, carol, convo); err != nil {
		return err
	}
	d, err = bob.DraftLeave(convo)
	if err := survive(ctx, w, point, bob, d, err); err != nil {
		return err
	}
	if err := carol.CommitRemovals(ctx, convo); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, alice, carol)
}

// surviveCommits kills the server at a member's commit, at the commit of a rejoin, and at the
// publication of new KeyPackages.
func surviveCommits(ctx context.Context, w *testbed.World, point string, p *client.Phone, convo string) error {
	d, err := p.DraftCommit(convo, mlsclient.Change{})
	if err := survive(ctx, w, point, p, d, err); err != nil {
		return err
	}
	if err := p.LoseState(true); err != nil {
		return err
	}
	info, err := p.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	d, err = p.DraftRejoin(convo, info)
	if err := survive(ctx, w, point, p, d, err); err != nil {
		return err
	}
	kp, err := p.Device.KeyPackage()
	if err != nil {
		return err
	}
	d, err = p.DraftPublishMany([]mlsclient.KeyPackage{kp})
	return survive(ctx, w, point, p, d, err)
}

// survive kills the server at a draft, restarts it, and delivers the draft.
func survive(ctx context.Context, w *testbed.World, point string, p *client.Phone, d *client.Draft, err error) error {
	if err != nil {
		return err
	}
	if err := dieOf(ctx, w, point, p, d.Call); err != nil {
		return err
	}
	answer, err := p.Deliver(ctx, d)
	if err != nil {
		return fmt.Errorf("%s after a kill %s: %w", d.Call.Method, point, err)
	}
	if want := point == testbed.AfterCommit; answer.Replayed() != want {
		w.Broken("%s retried after a kill %s: replay is %t, want %t", d.Call.Method, point, answer.Replayed(), want)
	}
	return nil
}

// dieOf arms the failpoint, makes the call, and starts the server again.
func dieOf(ctx context.Context, w *testbed.World, point string, p *client.Phone, call xrpc.Call) error {
	w.Progress(fmt.Sprintf("killing the server %s of %s", point, call.Method))
	if err := w.Server.Arm(ctx, point, call.Method, "kill"); err != nil {
		return err
	}
	answer, err := w.Net.Once(ctx, p.Account, call)
	if err == nil {
		return fmt.Errorf("%s was answered %q by a server that was to be dead", call.Method, answer.Body)
	}
	var named *xrpc.CallError
	if errors.As(err, &named) {
		return fmt.Errorf("a server that was to be dead: %w", err)
	}
	if err := w.Server.Died(ctx); err != nil {
		return err
	}
	return w.Server.Start(ctx, nil)
}

// surviveJoin kills the server at the fetch and at the confirmation of a Welcome.
func surviveJoin(ctx context.Context, w *testbed.World, point string, p *client.Phone, convo string) error {
	if err := dieOf(ctx, w, point, p, xrpc.WelcomeCall(convo, "")); err != nil {
		return err
	}
	out, err := p.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := p.SaveWelcome(out); err != nil {
		return err
	}
	if err := p.JoinSaved(convo); err != nil {
		return err
	}
	if err := dieOf(ctx, w, point, p, xrpc.ConfirmCall(convo, *out.KeyPackageRef, true, "")); err != nil {
		return err
	}
	if point == testbed.BeforeCommit {
		again, err := p.FetchWelcome(ctx, convo)
		if err != nil {
			return fmt.Errorf("a confirmation that never happened took the Welcome away: %w", err)
		}
		w.CheckSameWelcome(out, again)
	} else {
		w.CheckConsumed(ctx, p, convo)
	}
	if err := p.Confirm(ctx, convo); err != nil {
		return err
	}
	_, err = w.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ""))
	if xrpc.ErrorName(err) != mlsapi.ErrWelcomeConsumed {
		w.Broken("confirmed after a kill: %v, want WelcomeConsumed", err)
	}
	return p.Sync(ctx, convo)
}
