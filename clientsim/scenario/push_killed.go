package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// pushSteps returns the steps from a message to the record that its device got the push, and how
// many pushes come if the server dies there. A second push comes only if the first was made and not
// recorded.
func pushSteps() []pushStep {
	return []pushStep{
		{testbed.BeforeCommit, mlsapi.NSIDSendMessage, 1},
		{testbed.AfterCommit, mlsapi.NSIDSendMessage, 1},
		{testbed.BeforeCommit, testbed.NSIDPushFanout, 1},
		{testbed.AfterCommit, testbed.NSIDPushFanout, 1},
		{testbed.BeforeReserve, testbed.NSIDPushJob, 1},
		{testbed.AfterReserve, testbed.NSIDPushJob, 1},
		{testbed.AfterWork, testbed.NSIDPushJob, 2},
		{testbed.BeforeCommit, testbed.NSIDPushJob, 2},
		{testbed.AfterCommit, testbed.NSIDPushJob, 1},
	}
}

type pushStep struct {
	point, method string
	calls         int
}

// PushKilled kills the server at each of these steps. Every message makes one job. The device gets
// each one once if it compares keys.
func PushKilled(ctx context.Context, w *testbed.World) {
	w.WithReceiver(ctx, func(r *client.Receiver) {
		phones, convo := Must2(w.Convo(ctx, 2))
		alice, bob := phones[0], phones[1]
		at := Must(bob.RegisterAt(ctx, r))
		steps := pushSteps()
		w.RNG.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		calls := 0
		for _, step := range steps {
			if err := Attempt(func() { killedPush(ctx, w, step, alice, bob, at, convo) }); err != nil {
				Fail("killed %s of %s: %w", step.point, step.method, err)
			}
			calls += step.calls
		}
		if got := at.Pushes(); len(got) != calls || len(client.ByKey(got)) != len(steps) {
			w.Broken("%d messages, %d keys and %d calls, want %d", len(steps), len(client.ByKey(got)), len(got), calls)
		}

	})
}

func killedPush(ctx context.Context, w *testbed.World, step pushStep, from, to *client.Phone, at *client.PushTarget,
	convo string) {
	seen, text := len(at.Pushes()), "the server died of this: "+step.point+" "+step.method
	d := Must(from.DraftSend(convo, text))
	w.Progress(fmt.Sprintf("killing the server %s of %s", step.point, step.method))
	Check(w.Server.Arm(ctx, step.point, syntax.NSID(step.method), "kill"))
	var named *xrpc.CallError
	if _, err := w.Net.Once(ctx, from.Account, d.Call); errors.As(err, &named) {
		Check(err)
		return
	}
	Check(w.Server.Died())
	Check(w.Server.Start(ctx, nil))
	Check(w.Server.EndLeases(ctx))
	Must(from.Deliver(ctx, d))
	pushes, err := at.Await(ctx, func(pushes []client.Push) bool { return len(pushes) >= seen+step.calls })
	if err != nil {
		w.Broken("killed %s of %s: %d calls, want %d", step.point, step.method, len(pushes)-seen, step.calls)
		return
	}
	if keys := client.ByKey(pushes[seen:]); len(keys) != 1 {
		w.Broken("killed %s of %s: one message was pushed under %v", step.point, step.method, keys)
	}
	Check(w.FetchesWhenPushed(ctx, to, at, convo, text, seen))
	Check(w.Server.Pushed(ctx, to.Account))
}
