package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
)

// once loses one answer of a method after the server gave it, runs do, and
// sees to it that the loss happened.
func (w *World) losing(method string, do func() error) error {
	done := w.Script((&Script{}).On(nsid(method), Fault{Kind: LoseAnswer}))
	defer done()
	return do()
}

// deliverReplay delivers a draft whose first answer is lost, and holds the
// second one against it.
func (w *World) deliverReplay(ctx context.Context, p *Phone, method string, d *Draft) (Answer, error) {
	var answer Answer
	err := w.losing(method, func() (err error) {
		answer, err = p.Deliver(ctx, d)
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	original, ok := w.ledger.Original(p.Account, d.Call)
	if !ok {
		return Answer{}, errors.New("the first answer never passed the wire")
	}
	if !answer.Replayed() || !bytes.Equal(original, answer.Body) {
		w.Broken("%s: after a lost answer came %q (replay: %t), the first was %q", method, answer.Body, answer.Replayed(), original)
	}
	return answer, nil
}

// LostAnswerSend loses the answer to a message.
func LostAnswerSend(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	for i, p := range phones {
		d, err := p.DraftSend(convo, fmt.Sprintf("message %d", i))
		if err != nil {
			return err
		}
		if _, err := w.deliverReplay(ctx, p, "sendMessage", d); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}

// LostAnswerCreate loses the answer to createConvo, with founding members.
func LostAnswerCreate(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	others := dids(phones[1:])
	packages, err := phones[0].Claim(ctx, "", others)
	if err != nil {
		return err
	}
	d, err := phones[0].DraftCreate(others, packages)
	if err != nil {
		return err
	}
	answer, err := w.deliverReplay(ctx, phones[0], "createConvo", d)
	if err != nil {
		return err
	}
	convo, err := mlsapi.DecodeCreateConvoOutput(answer.Body)
	if err != nil {
		return err
	}
	for _, p := range phones[1:] {
		if err := p.Join(ctx, convo.ID); err != nil {
			return err
		}
	}
	return phones[2].Send(ctx, convo.ID, "we are all here")
}

// LostAnswerAdd loses the answer to addMembers, and has the app killed before
// it asks again: the commit, the Welcome and the key come from its disk.
func LostAnswerAdd(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	more, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	adder := phones[0]
	packages, err := adder.Claim(ctx, convo, dids(more))
	if err != nil {
		return err
	}
	d, err := adder.DraftAdd(convo, dids(more), packages)
	if err != nil {
		return err
	}
	err = w.losing("addMembers", func() error {
		if _, err := w.net.Once(ctx, adder.Account, d.Call); err == nil {
			return errors.New("the answer was not lost")
		}
		return nil
	})
	if err != nil {
		return err
	}
	adder.Kill()
	if err := adder.Launch(); err != nil {
		return err
	}
	if err := adder.Flush(ctx); err != nil {
		return err
	}
	for _, p := range more {
		if err := p.Join(ctx, convo); err != nil {
			return err
		}
	}
	if err := more[1].Send(ctx, convo, "added once"); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, append(phones, more...)...)
}

// LostAnswerPublish loses the answer to publishKeyPackage. The package must
// then be claimed once, and not be there a second time.
func LostAnswerPublish(ctx context.Context, w *World) error {
	p, err := w.Phone("publisher")
	if err != nil {
		return err
	}
	d, err := p.DraftPublish()
	if err != nil {
		return err
	}
	if _, err := w.deliverReplay(ctx, p, "publishKeyPackage", d); err != nil {
		return err
	}
	claimer, err := w.Phone("claimer")
	if err != nil {
		return err
	}
	if _, err := claimer.Create(ctx, p.Account.DID); err != nil {
		return err
	}
	_, err = claimer.Claim(ctx, "", dids([]*Phone{p}))
	if !errors.Is(err, ErrNoPackages) {
		w.Report(Violation{Kind: Duplicated, What: fmt.Sprintf("one published KeyPackage was claimed again: %v", err)})
	}
	return nil
}

// LostAnswerGetWelcome loses the first answer to getWelcome.
func LostAnswerGetWelcome(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	convo, err := phones[0].Create(ctx, phones[1].Account.DID)
	if err != nil {
		return err
	}
	var second *mlsapi.GetWelcomeOutput
	if err := w.losing("getWelcome", func() (err error) {
		second, err = phones[1].AskWelcome(ctx, convo)
		return err
	}); err != nil {
		return err
	}
	third, err := phones[1].AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.sameWelcome(second, third)
	if err := phones[1].Join(ctx, convo); err != nil {
		return err
	}
	return phones[1].Send(ctx, convo, "joined after all")
}

// sameWelcome: a Welcome fetched again within the grace is the same bytes
// under the same lease.
func (w *World) sameWelcome(a, b *mlsapi.GetWelcomeOutput) {
	if !bytes.Equal(a.Welcome, b.Welcome) {
		w.Broken("a Welcome fetched again has other bytes")
	}
	if *a.State != "in_flight" || *b.State != "in_flight" {
		w.Broken("a fetched Welcome is %s and %s, want in_flight", *a.State, *b.State)
	}
	if !a.GraceExpiresAt.Equal(b.GraceExpiresAt.Time) {
		w.Broken("fetching again moved the grace from %s to %s", a.GraceExpiresAt, b.GraceExpiresAt)
	}
}

// LostAnswerConfirm loses the answer to confirmWelcome.
func LostAnswerConfirm(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	convo, err := phones[0].Create(ctx, phones[1].Account.DID)
	if err != nil {
		return err
	}
	if err := w.losing("confirmWelcome", func() error { return phones[1].Join(ctx, convo) }); err != nil {
		return err
	}
	w.consumed(ctx, phones[1], convo)
	return phones[0].Send(ctx, convo, "confirmed once")
}

// consumed: the Welcome is gone, and says so.
func (w *World) consumed(ctx context.Context, p *Phone, convo string) {
	_, err := w.net.Do(ctx, p.Account, welcomeCall(convo, ""))
	if ErrorName(err) != mlsapi.ErrWelcomeConsumed {
		w.Broken("a confirmed Welcome fetched again: %v, want WelcomeConsumed", err)
	}
}

// LostAnswerLeave loses the answers to both kinds of leaveConvo: a member that
// leaves, and its removal, which is a commit.
func LostAnswerLeave(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	leave, err := bob.DraftLeave(convo)
	if err != nil {
		return err
	}
	if _, err := w.deliverReplay(ctx, bob, "leaveConvo", leave); err != nil {
		return err
	}
	remove, err := alice.DraftRemove(convo, bob.Account.DID)
	if err != nil {
		return err
	}
	if _, err := w.deliverReplay(ctx, alice, "leaveConvo", remove); err != nil {
		return err
	}
	if err := alice.Sync(ctx, convo); err != nil {
		return err
	}
	if err := carol.Sync(ctx, convo); err != nil {
		return err
	}
	return carol.Send(ctx, convo, "he left once")
}

// LostAnswerCursor loses the answer to updateCursor. The guard is the maximum:
// said again, said late or said of an older place, it never moves back.
func LostAnswerCursor(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	alice, bob := phones[0], phones[1]
	for i := range 3 {
		if err := alice.Send(ctx, convo, fmt.Sprintf("message %d", i)); err != nil {
			return err
		}
	}
	if err := bob.Sync(ctx, convo); err != nil {
		return err
	}
	for _, back := range []int64{1, 0, 2, 0} {
		if err := w.losing("updateCursor", func() error { return bob.markRead(ctx, convo, back) }); err != nil {
			return err
		}
	}
	return alice.Send(ctx, convo, "unread")
}
