package clientsim

import (
	"bytes"
	"context"
	"errors"
	"time"

	"mlsd/api/mlsapi"
)

// pair makes a creator and an invited phone that has not fetched its Welcome.
func (w *World) pair(ctx context.Context) (alice, bob *Phone, convo string, err error) {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return nil, nil, "", err
	}
	convo, err = phones[0].Create(ctx, phones[1].Account.DID)
	return phones[0], phones[1], convo, err
}

// WelcomeAppKilled kills the app twice within the grace: before the fetched
// Welcome was on its disk, and after.
func WelcomeAppKilled(ctx context.Context, w *World) error {
	alice, bob, convo, err := w.pair(ctx)
	if err != nil {
		return err
	}
	first, err := bob.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	bob.Kill()
	if err := bob.Launch(); err != nil {
		return err
	}
	second, err := bob.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.sameWelcome(first, second)
	if err := bob.KeepWelcome(second); err != nil {
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
	w.consumed(ctx, bob, convo)
	return bob.Send(ctx, convo, "with the Welcome from my disk")
}

// shortGrace is the grace of a server that is in a hurry.
const shortGrace = "1s"

// WelcomeAfterGrace kills the app and lets the grace run out: an unconfirmed
// Welcome is available again, as it was.
func WelcomeAfterGrace(ctx context.Context, w *World) error {
	if err := w.Restart(ctx, map[string]string{"MLSD_WELCOME_GRACE": shortGrace}); err != nil {
		return err
	}
	err := w.afterGrace(ctx)
	return errors.Join(err, w.Restart(ctx, nil))
}

func (w *World) afterGrace(ctx context.Context) error {
	alice, bob, convo, err := w.pair(ctx)
	if err != nil {
		return err
	}
	first, err := bob.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	bob.Kill()
	if err := bob.Launch(); err != nil {
		return err
	}
	second, err := bob.nextLease(ctx, convo, first)
	if err != nil {
		return err
	}
	if !bytes.Equal(first.Welcome, second.Welcome) {
		w.Broken("a released Welcome has other bytes")
	}
	if !second.GraceExpiresAt.After(first.GraceExpiresAt.Time) {
		w.Broken("the second lease ends at %s, before the first at %s", second.GraceExpiresAt, first.GraceExpiresAt)
	}
	if err := bob.KeepWelcome(second); err != nil {
		return err
	}
	if err := bob.FinishJoin(ctx, convo); err != nil {
		return err
	}
	w.consumed(ctx, bob, convo)
	return alice.Send(ctx, convo, "better late than never")
}

// WelcomeSilence has a server for which silence counts as success: a fetched
// Welcome is consumed when its grace is over, and a phone that kept it joins
// all the same. A failure that was reported is not silence: that Welcome is
// released.
func WelcomeSilence(ctx context.Context, w *World) error {
	if err := w.Restart(ctx, map[string]string{
		"MLSD_WELCOME_GRACE": shortGrace, "MLSD_WELCOME_ON_GRACE_EXPIRY": "consume",
	}); err != nil {
		return err
	}
	err := w.silence(ctx)
	return errors.Join(err, w.Restart(ctx, nil))
}

func (w *World) silence(ctx context.Context) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, silent, failing := phones[0], phones[1], phones[2]
	convo, err := alice.Create(ctx, dids(phones[1:])...)
	if err != nil {
		return err
	}
	kept, err := silent.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := silent.KeepWelcome(kept); err != nil {
		return err
	}
	failed, err := failing.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if _, err := failing.confirm(ctx, confirmCall(convo, *failed.KeyPackageRef, false, "out of memory")); err != nil {
		return err
	}
	released, err := failing.nextLease(ctx, convo, failed)
	if err != nil {
		return err
	}
	if !bytes.Equal(failed.Welcome, released.Welcome) {
		w.Broken("a Welcome released after a failure has other bytes")
	}
	// The other one's grace began before, so it is over as well.
	w.consumed(ctx, silent, convo)
	if err := failing.KeepWelcome(released); err != nil {
		return err
	}
	for _, p := range []*Phone{silent, failing} {
		if err := p.FinishJoin(ctx, convo); err != nil {
			return err
		}
		w.consumed(ctx, p, convo)
	}
	return alice.Send(ctx, convo, "silence is consent")
}

// nextLease fetches a Welcome until it comes under another lease than before.
// Fetching within the grace does not move it, so another lease means that the
// first one ran out and the Welcome was released.
func (p *Phone) nextLease(ctx context.Context, convo string, before *mlsapi.GetWelcomeOutput) (next *mlsapi.GetWelcomeOutput, err error) {
	err = until(ctx, 20*time.Second, func() (bool, error) {
		next, err = p.AskWelcome(ctx, convo)
		return err == nil && !next.GraceExpiresAt.Equal(before.GraceExpiresAt.Time), err
	})
	return next, err
}

// ConfirmTwice confirms with false, which loses nothing, then with true, then
// again with either: consumed stays consumed.
func ConfirmTwice(ctx context.Context, w *World) error {
	alice, bob, convo, err := w.pair(ctx)
	if err != nil {
		return err
	}
	first, err := bob.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	ref := *first.KeyPackageRef
	if _, err := bob.confirm(ctx, confirmCall(convo, ref, false, "out of memory")); err != nil {
		return err
	}
	second, err := bob.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	w.sameWelcome(first, second)
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	for _, success := range []bool{true, false, true} {
		out, err := bob.confirm(ctx, confirmCall(convo, ref, success, ""))
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
	w.consumed(ctx, bob, convo)
	// The creator has no Welcome: there is nothing to confirm.
	if _, err := alice.confirm(ctx, confirmCall(convo, "", true, "")); ErrorName(err) != mlsapi.ErrWelcomeNotFound {
		w.Broken("confirming a Welcome that never was: %v, want WelcomeNotFound", err)
	}
	return bob.Send(ctx, convo, "confirmed and confirmed")
}

// TwoDevices invites a DID with two devices: one claim takes a KeyPackage of
// each, one Welcome serves both, and one device's fetch and confirmation leave
// the other's Welcome alone.
func TwoDevices(ctx context.Context, w *World) error {
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
