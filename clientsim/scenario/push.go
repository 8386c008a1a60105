package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Push uses phones that fetch only after a push. After every burst of messages, they must have read
// the last message. The sender gets no push. A Welcome pushes to its device only. An unregistered
// device gets nothing.
func Push(ctx context.Context, w *testbed.World) {
	w.WithReceiver(ctx, func(r *client.Receiver) { push(ctx, w, r) })
}

func push(ctx context.Context, w *testbed.World, r *client.Receiver) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice, bob := phones[0], phones[1]
	atAlice := Must(alice.RegisterAt(ctx, r))
	atBob := r.NewTarget(bob.DeviceID())
	registrations(ctx, w, r, bob, atBob)
	for burst := range 3 {
		sendBurst(ctx, w, alice, bob, atBob, convo, burst)
	}
	carol, atCarol := pushedWelcome(ctx, w, r, alice, convo)
	if n := len(atAlice.Pushes()); n > 0 {
		w.Broken("%s was called %d times, and no other phone has sent anything", alice.Name, n)
	}
	unregistrations(ctx, w, bob, atBob)
	// A push that is already running may come during the first message.
	seen := len(atCarol.Pushes())
	Check(alice.Send(ctx, convo, "goodbye, pushes"))
	Check(w.FetchesWhenPushed(ctx, carol, atCarol, convo, "goodbye, pushes", seen))
	Check(w.NotPushed(ctx, atBob, alice, carol, atCarol, convo, "unregistered"))
	for _, b := range []*client.PushTarget{atAlice, atBob, atCarol} {
		for key, n := range client.ByKey(b.Pushes()) {
			if n > 1 {
				w.Broken("nothing went wrong, and %s came %d times", key, n)
			}
		}
	}
}

// registrations checks that repeated registrations count as one, and that each URL keeps its
// secret.
func registrations(ctx context.Context, w *testbed.World, r *client.Receiver, p *client.Phone, b *client.PushTarget) {
	call := xrpc.RegisterCall(b.Device, b.URL, xrpc.NewKey())
	answers := Must(w.AtOnce(ctx, p, call, 2))
	w.CheckOneOriginal("registerPushTarget", answers)
	first := Must(p.Registered(b, call, answers[0]))
	var again string
	Check(w.WithLostAnswer("registerPushTarget", func() (err error) {
		again, err = p.Register(ctx, b)
		return err
	}))
	elsewhere := r.NewTarget(b.Device)
	other := Must(p.Register(ctx, elsewhere))
	if again != first || other == first {
		w.Broken("the secret of one URL was %q and %q, and that of another %q", first, again, other)
	}
	// The repeated old call gets its old answer, and does not restore the old registration.
	answer := Must(w.Net.Do(ctx, p.Account, call))
	if same, err := p.Registered(b, call, answer); err != nil || same != first || !answer.Replayed() {
		w.Broken("registered again under its key: secret %q (replay: %t), the first was %q: %v", same, answer.Replayed(),
			first, err)
	}
	Must(p.Register(ctx, b))
}

func unregistrations(ctx context.Context, w *testbed.World, p *client.Phone, b *client.PushTarget) {
	call := xrpc.UnregisterCall(b.Device, xrpc.NewKey())
	answers := Must(w.AtOnce(ctx, p, call, 2))
	w.CheckOneOriginal("unregisterPushTarget", answers)
	p.Model.Acknowledged(p.Account, call)
	Check(w.WithLostAnswer("unregisterPushTarget", func() error {
		removed, err := p.Unregister(ctx, b)
		if err == nil && removed {
			w.Broken("a device was unregistered twice, and was registered both times")
		}
		return err
	}))
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
	Must(p.Register(ctx, tablet))
	acquaint(ctx, p, adder)
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

// PushReceiverFails uses a receiver that answers 500, 503 and nothing. The server repeats the call
// under its key, so a receiver that compares keys sees every job once. After other refusals, the
// server does not repeat the call, and 410 ends the registration.
func PushReceiverFails(ctx context.Context, w *testbed.World) {
	w.WithReceiver(ctx, func(r *client.Receiver) { failing(ctx, w, r) })
}

func failing(ctx context.Context, w *testbed.World, r *client.Receiver) {
	phones, convo := Must2(w.Convo(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	atBob := Must(bob.RegisterAt(ctx, r))
	atCarol := Must(carol.RegisterAt(ctx, r))
	for _, answers := range [][]int{{500}, {client.HangUp}, {503}, {429, 500}} {
		failed(ctx, w, alice, atBob, convo, answers...)
	}
	Check(bob.Sync(ctx, convo))
	superseded(ctx, w, alice, bob, atBob, convo)
	refusedPush(ctx, w, alice, bob, atBob, convo)
	for key, n := range delivered(atBob.Pushes()) {
		if n > 1 {
			w.Broken("%s was delivered %d times, although each was acknowledged", key, n)
		}
	}
	// After 410 nothing comes until the device registers again.
	Check(carol.Sync(ctx, convo))
	called(ctx, w, alice, atBob, convo, 1, 410)
	Check(w.NotPushed(ctx, atBob, alice, carol, atCarol, convo, "gone"))
	Must(bob.Register(ctx, atBob))
	seen := len(atBob.Pushes())
	Check(alice.Send(ctx, convo, "registered again"))
	Check(w.FetchesWhenPushed(ctx, bob, atBob, convo, "registered again", seen))
}

// called sends one message, sets the answers to its pushes, and returns the pushes when there are
// n.
func called(ctx context.Context, w *testbed.World, from *client.Phone, at *client.PushTarget, convo string, n int,
	answers ...int) []client.Push {
	before := len(at.Pushes())
	at.Answer(answers...)
	Check(from.Send(ctx, convo, fmt.Sprintf("call %d: a receiver that answers %v", before, answers)))
	pushes, err := at.Await(ctx, func(pushes []client.Push) bool { return len(pushes) >= before+n })
	if err != nil {
		Fail("%d calls, want %d, of a receiver that answers %v: %w", len(pushes)-before, n, answers, err)
		return nil
	}
	return pushes[before:]
}

// failed makes the pushes of one message fail. The repeated pushes must be the same.
func failed(ctx context.Context, w *testbed.World, from *client.Phone, at *client.PushTarget, convo string,
	answers ...int) {
	pushes := called(ctx, w, from, at, convo, len(answers)+1, answers...)
	if keys := client.ByKey(pushes); len(keys) != 1 {
		w.Broken("a call that was answered %v was repeated under another key: %v", answers, keys)
	}
	for i := range answers {
		if wait := pushes[i+1].At.Sub(pushes[i].At); answers[i] == 503 && wait < client.AskedRetryAfter-100*time.Millisecond {
			w.Broken("a receiver that asked for %s was called again after %s", client.AskedRetryAfter, wait)
		}
	}
}

// superseded sends a message while a job waits for its next attempt. The receiver gets the job
// under a new key.
func superseded(ctx context.Context, w *testbed.World, from, to *client.Phone, at *client.PushTarget, convo string) {
	pushes := called(ctx, w, from, at, convo, 1, 503)
	seen, text := len(at.Pushes()), "while the receiver was busy"
	Check(from.Send(ctx, convo, text))
	if _, err := at.Await(ctx, func(all []client.Push) bool {
		return slices.ContainsFunc(all[seen:], func(g client.Push) bool { return g.Key() != pushes[0].Key() })
	}); err != nil {
		w.Broken("a receiver that remembers keys got no push for %q: %v", text, err)
	}
	Check(w.FetchesWhenPushed(ctx, to, at, convo, text, seen))
}

// refusedPush refuses a push for good. That push is not repeated, and the next push comes.
func refusedPush(ctx context.Context, w *testbed.World, from, to *client.Phone, at *client.PushTarget, convo string) {
	pushes := called(ctx, w, from, at, convo, 1, 400)
	for i := range 2 {
		seen, text := len(at.Pushes()), fmt.Sprintf("after the refusal, %d", i)
		Check(from.Send(ctx, convo, text))
		Check(w.FetchesWhenPushed(ctx, to, at, convo, text, seen))
	}
	if n := client.ByKey(at.Pushes())[pushes[0].Key()]; n != 1 {
		w.Broken("a call that was refused was made %d times", n)
	}
}

// delivered counts the acknowledged calls under each key.
func delivered(pushes []client.Push) map[string]int {
	return client.ByKey(slices.DeleteFunc(pushes, func(g client.Push) bool { return g.Answer/100 != 2 }))
}

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

// PushKilled kills the server at each of these steps. Every message makes one job. A device that
// compares keys gets each job once.
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
