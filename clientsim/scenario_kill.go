package clientsim

import (
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
)

// KilledBeforeCommit kills the server exactly before the COMMIT of each kind
// of write: nothing of it may remain, and the retry is a first time.
func KilledBeforeCommit(ctx context.Context, w *World) error {
	return w.killedAt(ctx, BeforeCommit)
}

// KilledAfterCommit kills the server between COMMIT and answer: all of it must
// remain, and the retry is a replay of an answer that nobody ever heard.
func KilledAfterCommit(ctx context.Context, w *World) error {
	return w.killedAt(ctx, AfterCommit)
}

func (w *World) killedAt(ctx context.Context, point string) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	d, err := alice.DraftPublish()
	if err := w.survive(ctx, point, alice, d, err); err != nil {
		return err
	}
	packages, err := alice.Claim(ctx, "", dids(phones[1:2]))
	if err != nil {
		return err
	}
	d, err = alice.DraftCreate(dids(phones[1:2]), packages)
	if err := w.survive(ctx, point, alice, d, err); err != nil {
		return err
	}
	convo := w.model.snapshot()[0].id
	if err := w.surviveJoin(ctx, point, bob, convo); err != nil {
		return err
	}
	d, err = bob.DraftSend(convo, "the server died of this")
	if err := w.survive(ctx, point, bob, d, err); err != nil {
		return err
	}
	if err := bob.Sync(ctx, convo); err != nil {
		return err
	}
	if packages, err = bob.Claim(ctx, convo, dids(phones[2:])); err != nil {
		return err
	}
	d, err = bob.DraftAdd(convo, dids(phones[2:]), packages)
	if err := w.survive(ctx, point, bob, d, err); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := w.surviveCommits(ctx, point, carol, convo); err != nil {
		return err
	}
	d, err = bob.DraftLeave(convo)
	if err := w.survive(ctx, point, bob, d, err); err != nil {
		return err
	}
	if err := carol.Tidy(ctx, convo); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, alice, carol)
}

// surviveCommits has the server die of a member's commit, of the one by which it
// comes back after a loss, and of its new KeyPackages.
func (w *World) surviveCommits(ctx context.Context, point string, p *Phone, convo string) error {
	d, err := p.DraftCommit(convo, Change{})
	if err := w.survive(ctx, point, p, d, err); err != nil {
		return err
	}
	if err := p.Lose(true); err != nil {
		return err
	}
	info, err := p.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	d, err = p.DraftRejoin(convo, info)
	if err := w.survive(ctx, point, p, d, err); err != nil {
		return err
	}
	kp, err := p.device.KeyPackage()
	if err != nil {
		return err
	}
	d, err = p.DraftStock([]KeyPackage{kp})
	return w.survive(ctx, point, p, d, err)
}

// survive has the server die of a draft, restarts it and delivers the draft.
func (w *World) survive(ctx context.Context, point string, p *Phone, d *Draft, err error) error {
	if err != nil {
		return err
	}
	if err := w.dieOf(ctx, point, p, d.Call); err != nil {
		return err
	}
	answer, err := p.Deliver(ctx, d)
	if err != nil {
		return fmt.Errorf("%s after a kill %s: %w", d.Call.Method, point, err)
	}
	if want := point == AfterCommit; answer.Replayed() != want {
		w.Broken("%s retried after a kill %s: replay is %t, want %t", d.Call.Method, point, answer.Replayed(), want)
	}
	return nil
}

// dieOf arms the failpoint, makes the call, and starts the server again.
func (w *World) dieOf(ctx context.Context, point string, p *Phone, call Call) error {
	w.tell(fmt.Sprintf("killing the server %s of %s", point, call.Method))
	if err := w.Server.Arm(ctx, point, call.Method, "kill"); err != nil {
		return err
	}
	answer, err := w.net.Once(ctx, p.Account, call)
	if err == nil {
		return fmt.Errorf("%s was answered %q by a server that was to be dead", call.Method, answer.Body)
	}
	var named *CallError
	if errors.As(err, &named) {
		return fmt.Errorf("a server that was to be dead: %w", err)
	}
	if err := w.Server.Died(ctx); err != nil {
		return err
	}
	return w.Server.Start(ctx, nil)
}

// surviveJoin has the server die of the fetch and of the confirmation.
func (w *World) surviveJoin(ctx context.Context, point string, p *Phone, convo string) error {
	if err := w.dieOf(ctx, point, p, welcomeCall(convo, "")); err != nil {
		return err
	}
	out, err := p.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := p.KeepWelcome(out); err != nil {
		return err
	}
	if err := p.JoinKept(convo); err != nil {
		return err
	}
	if err := w.dieOf(ctx, point, p, confirmCall(convo, *out.KeyPackageRef, true, "")); err != nil {
		return err
	}
	if point == BeforeCommit {
		again, err := p.AskWelcome(ctx, convo)
		if err != nil {
			return fmt.Errorf("a confirmation that never happened took the Welcome away: %w", err)
		}
		w.sameWelcome(out, again)
	} else {
		w.consumed(ctx, p, convo)
	}
	if err := p.Confirm(ctx, convo); err != nil {
		return err
	}
	_, err = w.net.Do(ctx, p.Account, welcomeCall(convo, ""))
	if ErrorName(err) != mlsapi.ErrWelcomeConsumed {
		w.Broken("confirmed after a kill: %v, want WelcomeConsumed", err)
	}
	return p.Sync(ctx, convo)
}
