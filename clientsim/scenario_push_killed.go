package clientsim

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// pushSteps are the steps from a message to the record that its device was
// told, and how many calls come of a server that dies there: a second one only
// where the first was made and not written down.
func pushSteps() []pushStep {
	return []pushStep{
		{BeforeCommit, mlsapi.NSIDSendMessage, 1},
		{AfterCommit, mlsapi.NSIDSendMessage, 1},
		{BeforeCommit, nsidPushFanout, 1},
		{AfterCommit, nsidPushFanout, 1},
		{BeforeReserve, nsidPushJob, 1},
		{AfterReserve, nsidPushJob, 1},
		{AfterWork, nsidPushJob, 2},
		{BeforeCommit, nsidPushJob, 2},
		{AfterCommit, nsidPushJob, 1},
	}
}

type pushStep struct {
	point, method string
	calls         int
}

// PushKilled kills the server at each of those steps: every message makes one
// job, and the device hears of each, once if it looks at the key.
func PushKilled(ctx context.Context, w *World) error {
	return w.withReceiver(ctx, func(r *Receiver) error {
		phones, convo, err := w.Convo(ctx, 2)
		if err != nil {
			return err
		}
		alice, bob := phones[0], phones[1]
		at, err := bob.bellFor(ctx, r)
		if err != nil {
			return err
		}
		steps := pushSteps()
		w.rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		calls := 0
		for _, step := range steps {
			if err := w.killedPush(ctx, step, alice, bob, at, convo); err != nil {
				return fmt.Errorf("killed %s of %s: %w", step.point, step.method, err)
			}
			calls += step.calls
		}
		if got := at.Rings(); len(got) != calls || len(byKey(got)) != len(steps) {
			w.Broken("%d messages, %d keys and %d calls, want %d", len(steps), len(byKey(got)), len(got), calls)
		}
		return nil
	})
}

func (w *World) killedPush(ctx context.Context, step pushStep, from, to *Phone, at *Bell, convo string) error {
	seen, text := len(at.Rings()), "the server died of this: "+step.point+" "+step.method
	d, err := from.DraftSend(convo, text)
	if err != nil {
		return err
	}
	w.tell(fmt.Sprintf("killing the server %s of %s", step.point, step.method))
	if err := w.Server.Arm(ctx, step.point, syntax.NSID(step.method), "kill"); err != nil {
		return err
	}
	var named *CallError
	if _, err := w.net.Once(ctx, from.Account, d.Call); errors.As(err, &named) {
		return err
	}
	if err := w.Server.Died(ctx); err != nil {
		return err
	}
	if err := w.Server.Start(ctx, nil); err != nil {
		return err
	}
	if err := w.Server.EndLeases(ctx); err != nil {
		return err
	}
	if _, err := from.Deliver(ctx, d); err != nil {
		return err
	}
	rings, err := at.await(ctx, func(rings []ring) bool { return len(rings) >= seen+step.calls })
	if err != nil {
		w.Broken("killed %s of %s: %d calls, want %d", step.point, step.method, len(rings)-seen, step.calls)
		return nil
	}
	if keys := byKey(rings[seen:]); len(keys) != 1 {
		w.Broken("killed %s of %s: one message was told under %v", step.point, step.method, keys)
	}
	if err := w.woken(ctx, to, at, convo, text, seen); err != nil {
		return err
	}
	return w.Server.Pushed(ctx, to.Account)
}
