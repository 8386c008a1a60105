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
func LostAnswerSend(ctx context.Context, w *testbed.World) {
	phones, convo := must2(w.Convo(ctx, 3))
	for i, p := range phones {
		d := must(p.DraftSend(convo, fmt.Sprintf("message %d", i)))
		must(w.DeliverWithLostAnswer(ctx, p, "sendMessage", d))
	}
	check(w.SyncAll(ctx, convo, phones...))
}

// LostAnswerCreate loses the answer to createConvo, with founding members.
func LostAnswerCreate(ctx context.Context, w *testbed.World) {
	phones := must(w.Phones(ctx, 3))
	others := testbed.DIDs(phones[1:])
	packages := must(phones[0].Claim(ctx, "", others))
	d := must(phones[0].DraftCreate(others, packages))
	answer := must(w.DeliverWithLostAnswer(ctx, phones[0], "createConvo", d))
	convo := must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body))
	for _, p := range phones[1:] {
		check(p.Join(ctx, convo.ID))
	}
	check(phones[2].Send(ctx, convo.ID, "we are all here"))
}

// LostAnswerAdd loses the answer to addMembers and kills the app before it retries. The commit, the
// Welcome and the key come from its disk.
func LostAnswerAdd(ctx context.Context, w *testbed.World) {
	phones, convo := must2(w.Convo(ctx, 2))
	more := must(w.Phones(ctx, 2))
	adder := phones[0]
	packages := must(adder.Claim(ctx, convo, testbed.DIDs(more)))
	d := must(adder.DraftAdd(convo, testbed.DIDs(more), packages))
	check(w.WithLostAnswer("addMembers", func() error {
		if _, err := w.Net.Once(ctx, adder.Account, d.Call); err == nil {
			return errors.New("the answer was not lost")
		}
		return nil
	}))
	adder.Kill()
	check(adder.Launch())
	check(adder.Flush(ctx))
	for _, p := range more {
		check(p.Join(ctx, convo))
	}
	check(more[1].Send(ctx, convo, "added once"))
	check(w.SyncAll(ctx, convo, append(phones, more...)...))
}

// LostAnswerPublish loses the answer to publishKeyPackage. The KeyPackage must be claimable exactly
// once.
func LostAnswerPublish(ctx context.Context, w *testbed.World) {
	p := must(w.Phone("publisher"))
	d := must(p.DraftPublish())
	must(w.DeliverWithLostAnswer(ctx, p, "publishKeyPackage", d))
	claimer := must(w.Phone("claimer"))
	must(claimer.Create(ctx, p.Account.DID))
	_, err := claimer.Claim(ctx, "", testbed.DIDs([]*client.Phone{p}))
	if !errors.Is(err, client.ErrNoPackages) {
		w.Report(history.Violation{Kind: history.Duplicated, What: fmt.Sprintf("one published KeyPackage was claimed again: %v", err)})
	}
}

// LostAnswerGetWelcome loses the first answer to getWelcome.
func LostAnswerGetWelcome(ctx context.Context, w *testbed.World) {
	phones := must(w.Phones(ctx, 2))
	convo := must(phones[0].Create(ctx, phones[1].Account.DID))
	var second *mlsapi.GetWelcomeOutput
	check(w.WithLostAnswer("getWelcome", func() (err error) {
		second, err = phones[1].FetchWelcome(ctx, convo)
		return err
	}))
	third := must(phones[1].FetchWelcome(ctx, convo))
	w.CheckSameWelcome(second, third)
	check(phones[1].Join(ctx, convo))
	check(phones[1].Send(ctx, convo, "joined after all"))
}

// LostAnswerConfirm loses the answer to confirmWelcome.
func LostAnswerConfirm(ctx context.Context, w *testbed.World) {
	phones := must(w.Phones(ctx, 2))
	convo := must(phones[0].Create(ctx, phones[1].Account.DID))
	check(w.WithLostAnswer("confirmWelcome", func() error { return phones[1].Join(ctx, convo) }))
	w.CheckConsumed(ctx, phones[1], convo)
	check(phones[0].Send(ctx, convo, "confirmed once"))
}

// LostAnswerLeave loses the answers to both kinds of leaveConvo: a member's leave, and the commit
// of its removal.
func LostAnswerLeave(ctx context.Context, w *testbed.World) {
	phones, convo := must2(w.Convo(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	leave := must(bob.DraftLeave(convo))
	must(w.DeliverWithLostAnswer(ctx, bob, "leaveConvo", leave))
	remove := must(alice.DraftRemove(convo, bob.Account.DID))
	must(w.DeliverWithLostAnswer(ctx, alice, "leaveConvo", remove))
	check(alice.Sync(ctx, convo))
	check(carol.Sync(ctx, convo))
	check(carol.Send(ctx, convo, "he left once"))
}

// LostAnswerCursor loses the answer to updateCursor. The server keeps the maximum: repeated, late
// or older reports never move it back.
func LostAnswerCursor(ctx context.Context, w *testbed.World) {
	phones, convo := must2(w.Convo(ctx, 2))
	alice, bob := phones[0], phones[1]
	for i := range 3 {
		check(alice.Send(ctx, convo, fmt.Sprintf("message %d", i)))
	}
	check(bob.Sync(ctx, convo))
	for _, back := range []int64{1, 0, 2, 0} {
		check(w.WithLostAnswer("updateCursor", func() error { return bob.MarkReadBehind(ctx, convo, back) }))
	}
	check(alice.Send(ctx, convo, "unread"))
}
