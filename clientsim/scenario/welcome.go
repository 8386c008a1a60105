package scenario

import (
	"bytes"
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// pair makes a creator and an invited phone that has not fetched its Welcome.
func pair(ctx context.Context, w *testbed.World) (alice, bob *client.Phone, convo string) {
	phones := Must(w.Phones(ctx, 2))
	return phones[0], phones[1], Must(phones[0].Create(ctx, phones[1].Account.DID))
}

// shortGrace is a Welcome grace that is short enough for a test to wait. Even on a busy machine, a
// phone reports a failure before its end.
const shortGrace = "3s"

// graceLimit is how long a scenario waits for the end of a short grace.
const graceLimit = time.Minute

// WelcomeAfterGrace kills the app and waits for the end of the grace. Then the unconfirmed Welcome
// is available again, unchanged.
func WelcomeAfterGrace(ctx context.Context, w *testbed.World) {
	withSettings(ctx, w, map[string]string{"MLSD_WELCOME_GRACE": shortGrace}, afterGrace)
}

func afterGrace(ctx context.Context, w *testbed.World) {
	alice, bob, convo := pair(ctx, w)
	first := Must(bob.FetchWelcome(ctx, convo))
	bob.Kill()
	Check(bob.Launch())
	second := nextLease(ctx, bob, convo, first)
	if !bytes.Equal(first.Welcome, second.Welcome) {
		w.Broken("a released Welcome has other bytes")
	}
	if !second.GraceExpiresAt.After(first.GraceExpiresAt.Time) {
		w.Broken("the second lease ends at %s, before the first at %s", second.GraceExpiresAt, first.GraceExpiresAt)
	}
	Check(bob.SaveWelcome(second))
	Check(bob.FinishJoin(ctx, convo))
	w.CheckConsumed(ctx, bob, convo)
	Check(alice.Send(ctx, convo, "better late than never"))
}

// WelcomeSilence uses a server that treats silence as success. A fetched Welcome is consumed after
// its grace, and a phone that saved the Welcome still joins. A reported failure is not silence: the
// server releases that Welcome.
func WelcomeSilence(ctx context.Context, w *testbed.World) {
	withSettings(ctx, w, map[string]string{"MLSD_WELCOME_GRACE": shortGrace, "MLSD_WELCOME_ON_GRACE_EXPIRY": "consume"},
		silence)
}

func silence(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 3))
	alice, silent, failing := phones[0], phones[1], phones[2]
	convo := Must(alice.Create(ctx, testbed.DIDs(phones[1:])...))
	kept := Must(silent.FetchWelcome(ctx, convo))
	Check(silent.SaveWelcome(kept))
	failed := Must(failing.FetchWelcome(ctx, convo))
	Must(failing.ConfirmWith(ctx, xrpc.ConfirmCall(convo, *failed.KeyPackageRef, false, "out of memory")))
	released := nextLease(ctx, failing, convo, failed)
	if !bytes.Equal(failed.Welcome, released.Welcome) {
		w.Broken("a Welcome released after a failure has other bytes")
	}
	// The other Welcome's grace began earlier, so it has ended already.
	w.CheckConsumed(ctx, silent, convo)
	Check(failing.SaveWelcome(released))
	for _, p := range []*client.Phone{silent, failing} {
		Check(p.FinishJoin(ctx, convo))
		w.CheckConsumed(ctx, p, convo)
	}
	Check(alice.Send(ctx, convo, "silence is consent"))
}

// nextLease fetches a Welcome until it has another lease than before. Fetching within the grace
// does not change the lease. So another lease means that the first lease ran out and the Welcome
// was released.
func nextLease(ctx context.Context, p *client.Phone, convo string,
	before *mlsapi.GetWelcomeOutput) (next *mlsapi.GetWelcomeOutput) {
	Check(xrpc.Until(ctx, graceLimit, func() (_ bool, err error) {
		next, err = p.FetchWelcome(ctx, convo)
		return err == nil && !next.GraceExpiresAt.Equal(before.GraceExpiresAt.Time), err
	}))
	return next
}

// ConfirmTwice first confirms with false, which loses nothing. Then it confirms with true, and then
// again with both. A consumed Welcome stays consumed.
func ConfirmTwice(ctx context.Context, w *testbed.World) {
	alice, bob, convo := pair(ctx, w)
	first := Must(bob.FetchWelcome(ctx, convo))
	ref := *first.KeyPackageRef
	Must(bob.ConfirmWith(ctx, xrpc.ConfirmCall(convo, ref, false, "out of memory")))
	second := Must(bob.FetchWelcome(ctx, convo))
	w.CheckSameWelcome(first, second)
	Check(bob.Join(ctx, convo))
	for _, success := range []bool{true, false, true} {
		out := Must(bob.ConfirmWith(ctx, xrpc.ConfirmCall(convo, ref, success, "")))
		if !out.Confirmed {
			w.Broken("confirmed again with %t: confirmed is false", success)
		}
		if out.State != nil && *out.State != "consumed" {
			w.Broken("confirmed again with %t: the state is %s", success, *out.State)
		}
	}
	w.CheckConsumed(ctx, bob, convo)
	// The creator has no Welcome to confirm.
	if _, err := alice.ConfirmWith(ctx,
		xrpc.ConfirmCall(convo, "", true, "")); xrpc.ErrorName(err) != mlsapi.ErrWelcomeNotFound {
		w.Broken("confirming a Welcome that never was: %v, want WelcomeNotFound", err)
	}
	Check(bob.Send(ctx, convo, "confirmed and confirmed"))
}

// TwoDevices adds a DID with two devices. One claim takes a KeyPackage of each device, and one
// Welcome serves both. Fetching and confirming on one device does not change the other's Welcome.
func TwoDevices(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 2))
	alice, phone := phones[0], phones[1]
	tablet := Must(w.SecondDevice(phone, "tablet"))
	Check(tablet.Publish(ctx, 2))
	convo := Must(alice.Create(ctx, phone.Account.DID))
	group := Must(alice.Group(convo))
	if n := len(group.Members()); n != 3 {
		w.Broken("a claim for one DID with two devices made a group of %d leaves, want 3", n)
	}
	Check(phone.Join(ctx, convo))
	Check(phone.Send(ctx, convo, "from the phone"))
	Check(tablet.Join(ctx, convo))
	Check(tablet.Send(ctx, convo, "from the tablet"))
	Check(w.SyncAll(ctx, convo, alice, phone, tablet))
}
