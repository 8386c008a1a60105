package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Push uses phones that fetch only after a push. After every burst of messages, they must have read
// the last message. The sender gets no push. A Welcome pushes to its device only.
func Push(ctx context.Context, w *testbed.World) {
	w.WithReceiver(func(r *client.Receiver) { push(ctx, w, r) })
}

func push(ctx context.Context, w *testbed.World, r *client.Receiver) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice, bob := phones[0], phones[1]
	atAlice, atBob := Must(alice.RegisterAt(ctx, r)), Must(bob.RegisterAt(ctx, r))
	for burst := range 3 {
		sendBurst(ctx, w, alice, bob, atBob, convo, burst)
	}
	carol, atCarol := pushedWelcome(ctx, w, r, alice, convo)
	if n := len(atAlice.Pushes()); n > 0 {
		w.Broken("%s was called %d times, and no other phone has sent anything", alice.Name, n)
	}
	// A push that is already running may come during the first message.
	seen := len(atCarol.Pushes())
	Check(alice.Send(ctx, convo, "goodbye, pushes"))
	Check(w.FetchesWhenPushed(ctx, carol, atCarol, convo, "goodbye, pushes", seen))
	for _, b := range []*client.PushTarget{atAlice, atBob, atCarol} {
		for key, n := range client.ByKey(b.Pushes()) {
			if n > 1 {
				w.Broken("nothing went wrong, and %s came %d times", key, n)
			}
		}
	}
}

// sendBurst sends some messages and waits until the last message is read.
func sendBurst(ctx context.Context, w *testbed.World, from, to *client.Phone, at *client.PushTarget, convo string,
	burst int) {
	seen, text := len(at.Pushes()), ""
	const messages = 6
	for i := range messages {
		text = fmt.Sprintf("burst %d, message %d", burst, i)
		Check(from.Send(ctx, convo, text))
		Check(pause(ctx, time.Duration(w.RNG.IntN(500))*time.Millisecond))
	}
	Check(w.FetchesWhenPushed(ctx, to, at, convo, text, seen))
	if n := len(at.Pushes()) - seen; n > messages {
		w.Broken("%d calls for %d messages", n, messages)
	}
}

// pushedWelcome adds a phone. Its owner has another device, and shares a convo with the adder,
// because a Welcome is not pushed between people who share no convo. Only the device of the Welcome
// gets a push.
func pushedWelcome(ctx context.Context, w *testbed.World, r *client.Receiver, adder *client.Phone,
	convo string) (*client.Phone, *client.PushTarget) {
	phones := Must(w.Phones(ctx, 1))
	p := phones[0]
	at := Must(p.RegisterAt(ctx, r))
	tablet := r.NewTarget("a tablet without KeyPackages")
	Check(p.Register(ctx, tablet))
	Check(adder.Publish(ctx, 1))
	Check(adder.Join(ctx, Must(p.Create(ctx, adder.Account.DID))))
	Check(adder.Add(ctx, convo, p.Account.DID))
	welcome := func(pushes []client.Push) bool {
		return slices.ContainsFunc(pushes, func(g client.Push) bool {
			note, err := g.Note()
			return err == nil && note.Type == "welcome"
		})
	}
	if _, err := at.Await(ctx, welcome); err != nil {
		w.Broken("%s got no push for its Welcome: %v", p.Name, err)
	}
	Check(p.Join(ctx, convo))
	if welcome(tablet.Pushes()) {
		w.Broken("a device got the push for another one's Welcome")
	}
	return p, at
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	xrpc.Sleep(ctx, d)
	return ctx.Err()
}
