package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// play plays one phone's plan of a round.
func (t *conversation) play(ctx context.Context, plan *phonePlan, round int) {
	p := plan.phone
	p.Device.HideHandshakes(plan.hidden)
	if plan.lose {
		Check(p.Recover(ctx, plan.rng.IntN(2) == 0))
	}
	for i := range plan.messages {
		t.maybeKill(ctx, plan)
		Check(p.Send(ctx, t.convo, fmt.Sprintf("round %d, %s, %d", round, p.Name, i)))
	}
	t.commits(ctx, plan)
	if plan.leave {
		Check(p.Leave(ctx, t.convo))
		return
	}
	Check(p.Sync(ctx, t.convo))
	if plan.rng.IntN(2) > 0 { // an older report arrives after a newer one
		Check(p.MarkReadBehind(ctx, t.convo, plan.rng.Int64N(5)))
	}
}

// commits makes the commits of a plan.
func (t *conversation) commits(ctx context.Context, plan *phonePlan) {
	p := plan.phone
	if plan.tidy || plan.add != nil {
		Check(p.CommitRemovals(ctx, t.convo))
	}
	if plan.rotate {
		Check(p.Rotate(ctx, t.convo))
	}
	if plan.tablet != nil {
		t.bring(ctx, plan)
	}
	if plan.add != nil {
		t.invite(ctx, plan)
	}
	if plan.remove != nil {
		Check(p.Remove(ctx, t.convo, plan.remove.Account.DID))
	}
}

// bring adds another device of a member. Either the member adds it, or it joins by external commit.
func (t *conversation) bring(ctx context.Context, plan *phonePlan) {
	if plan.rng.IntN(2) == 0 {
		Check(plan.tablet.Rejoin(ctx, t.convo))
		return
	}
	Check(plan.tablet.Publish(ctx, 1))
	Check(plan.phone.AddOwn(ctx, t.convo, plan.tablet))
	Check(plan.tablet.Join(ctx, t.convo))
}

// invite adds a phone, which joins at once. Its app may be killed on the way.
func (t *conversation) invite(ctx context.Context, plan *phonePlan) {
	joiner := plan.add
	Check(joiner.Publish(ctx, 1))
	Check(plan.phone.Add(ctx, t.convo, joiner.Account.DID))
	out, err := joiner.FetchWelcome(ctx, t.convo)
	if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound && joiner.FormerKey != nil {
		// Its KeyPackage belongs to a state that the device has lost.
		Check(joiner.Rejoin(ctx, t.convo))
		return
	}
	Check(err)
	if plan.rng.IntN(3) == 0 {
		joiner.Kill()
		Check(joiner.Launch())
		out = Must(joiner.FetchWelcome(ctx, t.convo))
	}
	Check(joiner.SaveWelcome(out))
	Check(joiner.FinishJoin(ctx, t.convo))
}

// maybeKill kills the app now and then: idle, or with a message in its outbox that was sent once
// with an unknown outcome.
func (t *conversation) maybeKill(ctx context.Context, plan *phonePlan) {
	p := plan.phone
	switch plan.rng.IntN(12) {
	case 0:
		p.Kill()
	case 1:
		d := Must(p.DraftSend(t.convo, "last words "+xrpc.NewKey()))
		if _, err := t.w.Net.Once(ctx, p.Account, d.Call); xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch {
			Check(p.Drop(d))
			return
		}
		p.Kill()
	default:
		return
	}
	Check(p.Launch())
	Check(p.Flush(ctx))
}
