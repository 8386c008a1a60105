package scenario

import (
	"bytes"
	"context"
	"errors"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// pair makes a creator and an invited phone that has not fetched its Welcome.
func pair(ctx context.Context, w *testbed.World) (alice, bob *client.Phone, convo string, err error) {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return nil, nil, "", err
	}
	convo, err = phones[0].Create(ctx, phones[1].Account.DID)
	return phones[0], phones[1], convo, err
}

// WelcomeAppKilled kills the app twice within the grace: before the fetched Welcome is on its disk,
// and after.
func WelcomeAppKilled(ctx context.Context, w *testbed.World) error {
	alice, bob, convo, err := pair(ctx, w)
	if err != nil {
		return err
	}
	first, err := bob.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	bob.Kill()
	if err := bob.Launch(); err != nil {
		return err
	}
	second, err := bob.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.CheckSameWelcome(first, second)
	if err := bob.SaveWelcome(second); err != nil {
		return err
	}
	bob.Kill()
	if err := bob.Launch(); err != nil {
		return err
	}
	if err := alice.Send(ctx, convo, "are you there?"); err != nil {
		return err
	}
	if err := bob.FinishJoin(ctx, convo); err != nil {
		return err
	}
	w.CheckConsumed(ctx, bob, convo)
	return bob.Send(ctx, convo, "with the Welcome from my disk")
}

// shortGrace is a Welcome grace that a test can wait for. On a busy machine a phone still reports a
// failure within it.
const shortGrace = "3s"

// graceLimit is how long a scenario waits for the end of a short grace.
const graceLimit = time.Minute

// WelcomeAfterGrace kills the app and lets the grace run out. The unconfirmed Welcome is available
// again, unchanged.
func WelcomeAfterGrace(ctx context.Context, w *testbed.World) error {
	if err := w.Restart(ctx, map[string]string{"MLSD_WELCOME_GRACE": shortGrace}); err != nil {
		return err
	}
	err := afterGrace(ctx, w)
	return errors.Join(err, w.Restart(ctx, nil))
}

func afterGrace(ctx context.Context, w *testbed.World) error {
	alice, bob, convo, err := pair(ctx, w)
	if err != nil {
		return err
	}
	first, err := bob.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	bob.Kill()
	if err := bob.Launch(); err != nil {
		return err
	}
	second, err := nextLease(ctx, bob, convo, first)
	if err != nil {
		return err
	}
	if !bytes.Equal(first.Welcome, second.Welcome) {
		w.Broken("a released Welcome has other bytes")
	}
	if !second.GraceExpiresAt.After(first.GraceExpiresAt.Time) {
		w.Broken("the second lease ends at %s, before the first at %s", second.GraceExpiresAt, first.GraceExpiresAt)
	}
	if err := bob.SaveWelcome(second); err != nil {
		return err
	}
	if err := bob.FinishJoin(ctx, convo); err != nil {
		return err
	}
	w.CheckConsumed(ctx, bob, convo)
	return alice.Send(ctx, convo, "better late than never")
}

// WelcomeSilence uses a server that treats silence as success. A fetched Welcome is consumed after
// its grace, and a phone that saved it still joins. A reported failure is not silence: that Welcome
// is released.
func WelcomeSilence(ctx context.Context, w *testbed.World) error {
	if err := w.Restart(ctx, map[string]string{
		"MLSD_WELCOME_GRACE": shortGrace, "MLSD_WELCOME_ON_GRACE_EXPIRY": "consume",
	}); err != nil {
		return err
	}
	err := silence(ctx, w)
	return errors.Join(err, w.Restart(ctx, nil))
}

func silence(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, silent, failing := phones[0], phones[1], phones[2]
	convo, err := alice.Create(ctx, testbed.DIDs(phones[1:])...)
	if err != nil {
		return err
	}
	kept, err := silent.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := silent.SaveWelcome(kept); err != nil {
		return err
	}
	failed, err := failing.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if _, err := failing.ConfirmWith(ctx, xrpc.ConfirmCall(convo, *failed.KeyPackageRef, false, "out of memory")); err != nil {
		return err
	}
	released, err := nextLease(ctx, failing, convo, failed)
	if err != nil {
		return err
	}
	if !bytes.Equal(failed.Welcome, released.Welcome) {
		w.Broken("a Welcome released after a failure has other bytes")
	}
	// The other Welcome's grace began earlier, so it is over too.
	w.CheckConsumed(ctx, silent, convo)
	if err := failing.SaveWelcome(released); err != nil {
		return err
	}
	for _, p := range []*client.Phone{silent, failing} {
		if err := p.FinishJoin(ctx, convo); err != nil {
			return err
		}
		w.CheckConsumed(ctx, p, convo)
	}
	return alice.Send(ctx, convo, "silence is consent")
}

// nextLease fetches a Welcome until it has another lease than before. Fetching within the grace
// does not change the lease. So another lease means that the first one ran out and the Welcome was
// released.
func nextLease(ctx context.Context, p *client.Phone, convo string, before *mlsapi.GetWelcomeOutput) (next *mlsapi.GetWelcomeOutput, err error) {
	err = xrpc.Until(ctx, graceLimit, func() (bool, error) {
		next, err = p.FetchWelcome(ctx, convo)
		return err == nil && !next.GraceExpiresAt.Equal(before.GraceExpiresAt.Time), err
	})
	return next, err
}

// ConfirmTwice confirms with false, which loses nothing, then with true, then again with both. A
// consumed Welcome stays consumed.
func ConfirmTwice(ctx context.Context, w *testbed.World) error {
	alice, bob, convo, err := pair(ctx, w)
	if err != nil {
		return err
	}
	first, err := bob.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	ref := *first.KeyPackageRef
	if _, err := bob.ConfirmWith(ctx, xrpc.ConfirmCall(convo, ref, false, "out of memory")); err != nil {
		return err
	}
	second, err := bob.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.CheckSameWelcome(first, second)
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	for _, success := range []bool{true, false, true} {
		out, err := bob.ConfirmWith(ctx, xrpc.ConfirmCall(convo, ref, success, ""))
		if err != nil {
			return err
		}
		if !out.Confirmed {
			w.Broken("confirmed again with %t: confirmed is false", success)
		}
		if out.State != nil && *out.State != "consumed" {
			w.Broken("confirmed again with %t: the state is %s", success, *out.State)
		}
	}
	w.CheckConsumed(ctx, bob, convo)
	// The creator has no Welcome to confirm.
	if _, err := alice.ConfirmWith(ctx, xrpc.ConfirmCall(convo, "", true, "")); xrpc.ErrorName(err) != mlsapi.ErrWelcomeNotFound {
		w.Broken("confirming a Welcome that never was: %v, want WelcomeNotFound", err)
	}
	return bob.Send(ctx, convo, "confirmed and confirmed")
}

// TwoDevices adds a DID with two devices. One claim takes a KeyPackage of each, and one Welcome
// serves both. One device's fetch and confirmation do not change the other's Welcome.
func TwoDevices(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	alice, phone := phones[0], phones[1]
	tablet, err := w.SecondDevice(phone, "tablet")
	if err != nil {
		return err
	}
	if err := tablet.Publish(ctx, 2); err != nil {
		return err
	}
	convo, err := alice.Create(ctx, phone.Account.DID)
	if err != nil {
		return err
	}
	group, err := alice.Group(convo)
	if err != nil {
		return err
	}
	if n := len(group.Members()); n != 3 {
		w.Broken("a claim for one DID with two devices made a group of %d leaves, want 3", n)
	}
	if err := phone.Join(ctx, convo); err != nil {
		return err
	}
	if err := phone.Send(ctx, convo, "from the phone"); err != nil {
		return err
	}
	if err := tablet.Join(ctx, convo); err != nil {
		return err
	}
	if err := tablet.Send(ctx, convo, "from the tablet"); err != nil {
		return err
	}
	return w.SyncAll(ctx, convo, alice, phone, tablet)
}
