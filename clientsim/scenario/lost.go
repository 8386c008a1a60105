package scenario

import (
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// LostAnswerSend loses the answer to a message.
func LostAnswerSend(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	for i, p := range phones {
		d, err := p.DraftSend(convo, fmt.Sprintf("message %d", i))
		if err != nil {
			return err
		}
		if _, err := w.DeliverWithLostAnswer(ctx, p, "sendMessage", d); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}

// LostAnswerCreate loses the answer to createConvo, with founding members.
func LostAnswerCreate(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	others := testbed.DIDs(phones[1:])
	packages, err := phones[0].Claim(ctx, "", others)
	if err != nil {
		return err
	}
	d, err := phones[0].DraftCreate(others, packages)
	if err != nil {
		return err
	}
	answer, err := w.DeliverWithLostAnswer(ctx, phones[0], "createConvo", d)
	if err != nil {
		return err
	}
	convo, err := xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)
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

// LostAnswerAdd loses the answer to addMembers and kills the app before it retries. The commit, the
// Welcome and the key come from its disk.
func LostAnswerAdd(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	more, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	adder := phones[0]
	packages, err := adder.Claim(ctx, convo, testbed.DIDs(more))
	if err != nil {
		return err
	}
	d, err := adder.DraftAdd(convo, testbed.DIDs(more), packages)
	if err != nil {
		return err
	}
	err = w.WithLostAnswer("addMembers", func() error {
		if _, err := w.Net.Once(ctx, adder.Account, d.Call); err == nil {
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

// LostAnswerPublish loses the answer to publishKeyPackage. The KeyPackage must be claimable exactly
// once.
func LostAnswerPublish(ctx context.Context, w *testbed.World) error {
	p, err := w.Phone("publisher")
	if err != nil {
		return err
	}
	d, err := p.DraftPublish()
	if err != nil {
		return err
	}
	if _, err := w.DeliverWithLostAnswer(ctx, p, "publishKeyPackage", d); err != nil {
		return err
	}
	claimer, err := w.Phone("claimer")
	if err != nil {
		return err
	}
	if _, err := claimer.Create(ctx, p.Account.DID); err != nil {
		return err
	}
	_, err = claimer.Claim(ctx, "", testbed.DIDs([]*client.Phone{p}))
	if !errors.Is(err, client.ErrNoPackages) {
		w.Report(history.Violation{Kind: history.Duplicated, What: fmt.Sprintf("one published KeyPackage was claimed again: %v", err)})
	}
	return nil
}

// LostAnswerGetWelcome loses the first answer to getWelcome.
func LostAnswerGetWelcome(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	convo, err := phones[0].Create(ctx, phones[1].Account.DID)
	if err != nil {
		return err
	}
	var second *mlsapi.GetWelcomeOutput
	if err := w.WithLostAnswer("getWelcome", func() (err error) {
		second, err = phones[1].FetchWelcome(ctx, convo)
		return err
	}); err != nil {
		return err
	}
	third, err := phones[1].FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.CheckSameWelcome(second, third)
	if err := phones[1].Join(ctx, convo); err != nil {
		return err
	}
	return phones[1].Send(ctx, convo, "joined after all")
}

// LostAnswerConfirm loses the answer to confirmWelcome.
func LostAnswerConfirm(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	convo, err := phones[0].Create(ctx, phones[1].Account.DID)
	if err != nil {
		return err
	}
	if err := w.WithLostAnswer("confirmWelcome", func() error { return phones[1].Join(ctx, convo) }); err != nil {
		return err
	}
	w.CheckConsumed(ctx, phones[1], convo)
	return phones[0].Send(ctx, convo, "confirmed once")
}

// LostAnswerLeave loses the answers to both kinds of leaveConvo: a member's leave, and the commit
// of its removal.
func LostAnswerLeave(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	leave, err := bob.DraftLeave(convo)
	if err != nil {
		return err
	}
	if _, err := w.DeliverWithLostAnswer(ctx, bob, "leaveConvo", leave); err != nil {
		return err
	}
	remove, err := alice.DraftRemove(convo, bob.Account.DID)
	if err != nil {
		return err
	}
	if _, err := w.DeliverWithLostAnswer(ctx, alice, "leaveConvo", remove); err != nil {
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

// LostAnswerCursor loses the answer to updateCursor. The server keeps the maximum: repeated, late
// or older reports never move it back.
func LostAnswerCursor(ctx context.Context, w *testbed.World) error {
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
		if err := w.WithLostAnswer("updateCursor", func() error { return bob.MarkReadBehind(ctx, convo, back) }); err != nil {
			return err
		}
	}
	return alice.Send(ctx, convo, "unread")
}
