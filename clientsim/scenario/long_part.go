package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// play plays one phone's plan of a round.
func (t *conversation) play(ctx context.Context, part *turnPlan, round int) error {
	p := part.phone
	p.Device.HideHandshakes(part.hidden)
	if part.lose {
		if err := p.Recover(ctx, part.rng.IntN(2) == 0); err != nil {
			return err
		}
	}
	for i := range part.messages {
		if err := t.maybeKill(ctx, part); err != nil {
			return err
		}
		if err := p.Send(ctx, t.convo, fmt.Sprintf("round %d, %s, %d", round, p.Name, i)); err != nil {
			return err
		}
	}
	if err := t.commits(ctx, part); err != nil {
		return err
	}
	if part.leave {
		return p.Leave(ctx, t.convo)
	}
	if err := p.Sync(ctx, t.convo); err != nil || part.rng.IntN(2) == 0 {
		return err
	}
	// Now and then an older report arrives after a newer one.
	return p.MarkReadBehind(ctx, t.convo, part.rng.Int64N(5))
}

// commits makes the commits of a plan.
func (t *conversation) commits(ctx context.Context, part *turnPlan) error {
	p := part.phone
	if part.tidy || part.add != nil {
		if err := p.CommitRemovals(ctx, t.convo); err != nil {
			return err
		}
	}
	if part.rotate {
		if err := p.Rotate(ctx, t.convo); err != nil {
			return err
		}
	}
	if part.tablet != nil {
		if err := t.bring(ctx, part); err != nil {
			return err
		}
	}
	if part.add != nil {
		if err := t.invite(ctx, part); err != nil {
			return err
		}
	}
	if part.remove != nil {
		return p.Remove(ctx, t.convo, part.remove.Account.DID)
	}
	return nil
}

// bring adds another device of a member. Either the member adds it, or it joins by external commit.
func (t *conversation) bring(ctx context.Context, part *turnPlan) error {
	if part.rng.IntN(2) == 0 {
		return part.tablet.Rejoin(ctx, t.convo)
	}
	if err := part.tablet.Publish(ctx, 1); err != nil {
		return err
	}
	if err := part.phone.AddOwn(ctx, t.convo, part.tablet); err != nil {
		return err
	}
	return part.tablet.Join(ctx, t.convo)
}

// invite adds a phone, which joins at once. Its app may be killed on the way.
func (t *conversation) invite(ctx context.Context, part *turnPlan) error {
	joiner := part.add
	if err := joiner.Publish(ctx, 1); err != nil {
		return err
	}
	if err := part.phone.Add(ctx, t.convo, joiner.Account.DID); err != nil {
		return err
	}
	out, err := joiner.FetchWelcome(ctx, t.convo)
	if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound && joiner.FormerKey != nil {
		// Its KeyPackage belongs to a state that the device has lost.
		return joiner.Rejoin(ctx, t.convo)
	}
	if err != nil {
		return err
	}
	if part.rng.IntN(3) == 0 {
		joiner.Kill()
		if err := joiner.Launch(); err != nil {
			return err
		}
		if out, err = joiner.FetchWelcome(ctx, t.convo); err != nil {
			return err
		}
	}
	if err := joiner.SaveWelcome(out); err != nil {
		return err
	}
	return joiner.FinishJoin(ctx, t.convo)
}

// maybeKill kills the app now and then: idle, or with a message in its outbox that was sent once
// with an unknown outcome.
func (t *conversation) maybeKill(ctx context.Context, part *turnPlan) error {
	p := part.phone
	switch part.rng.IntN(12) {
	case 0:
		p.Kill()
	case 1:
		d, err := p.DraftSend(t.convo, "last words "+xrpc.NewKey())
		if err != nil {
			return err
		}
		if _, err := t.w.Net.Once(ctx, p.Account, d.Call); xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch {
			return p.Drop(d)
		}
		p.Kill()
	default:
		return nil
	}
	if err := p.Launch(); err != nil {
		return err
	}
	return p.Flush(ctx)
}
