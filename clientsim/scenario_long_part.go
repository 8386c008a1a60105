package clientsim

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// play plays one phone's part in a round of the long conversation.
func (t *talk) play(ctx context.Context, part *part, round int) error {
	p := part.phone
	p.device.HideHandshakes(part.hidden)
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
	// Now and then a word that was overtaken by a later one arrives.
	return p.markRead(ctx, t.convo, part.rng.Int64N(5))
}

// commits makes the commits of a part.
func (t *talk) commits(ctx context.Context, part *part) error {
	p := part.phone
	if part.tidy || part.add != nil {
		if err := p.Tidy(ctx, t.convo); err != nil {
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

// bring brings a further device of a member's in: added by the member, or by
// itself.
func (t *talk) bring(ctx context.Context, part *part) error {
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

// markRead reports the place where this phone stands in the log, or one that
// lies so far back.
func (p *Phone) markRead(ctx context.Context, convo string, back int64) error {
	thread, _, err := p.open(convo)
	if err != nil {
		return err
	}
	return p.MarkRead(ctx, convo, max(thread.Cursor-back, 0))
}

// invite adds someone, who joins at once, with an app that may die over it.
func (t *talk) invite(ctx context.Context, part *part) error {
	joiner := part.add
	if err := joiner.Publish(ctx, 1); err != nil {
		return err
	}
	if err := part.phone.Add(ctx, t.convo, joiner.Account.DID); err != nil {
		return err
	}
	out, err := joiner.AskWelcome(ctx, t.convo)
	if ErrorName(err) == mlsapi.ErrWelcomeNotFound && joiner.former != nil {
		// It was added with a KeyPackage whose private half it has lost.
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
		if out, err = joiner.AskWelcome(ctx, t.convo); err != nil {
			return err
		}
	}
	if err := joiner.KeepWelcome(out); err != nil {
		return err
	}
	return joiner.FinishJoin(ctx, t.convo)
}

// maybeKill kills the app now and then: idle, or with a message in its outbox
// that was sent once, with an outcome that nobody heard.
func (t *talk) maybeKill(ctx context.Context, part *part) error {
	p := part.phone
	switch part.rng.IntN(12) {
	case 0:
		p.Kill()
	case 1:
		d, err := p.DraftSend(t.convo, "last words "+newKey())
		if err != nil {
			return err
		}
		if _, err := t.w.net.Once(ctx, p.Account, d.Call); ErrorName(err) == mlsapi.ErrEpochMismatch {
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
