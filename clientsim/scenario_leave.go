package clientsim

import (
	"bytes"
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// RetryAfterLeave retries a message and the leave itself when the sender is no
// longer a member: the look-up of the key comes before the check of the roster.
func RetryAfterLeave(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob := phones[0], phones[1]
	d, err := bob.DraftSend(convo, "my last words")
	if err != nil {
		return err
	}
	first, err := bob.Deliver(ctx, d)
	if err != nil {
		return err
	}
	leave, err := bob.DraftLeave(convo)
	if err != nil {
		return err
	}
	if _, err := w.deliverReplay(ctx, bob, "leaveConvo", leave); err != nil {
		return err
	}
	again, err := w.net.Do(ctx, bob.Account, d.Call)
	if err != nil {
		return fmt.Errorf("a stored message retried after its sender left: %w", err)
	}
	if !again.Replayed() || !bytes.Equal(first.Body, again.Body) {
		w.Broken("a message retried after its sender left: %q, first %q", again.Body, first.Body)
	}
	fresh, err := bob.DraftSend(convo, "one more word")
	if err != nil {
		return err
	}
	if _, err := bob.Deliver(ctx, fresh); ErrorName(err) != mlsapi.ErrNotMember {
		w.Broken("a new message of one who left: %v, want NotMember", err)
	}
	if err := alice.Tidy(ctx, convo); err != nil {
		return err
	}
	return alice.Send(ctx, convo, "without him")
}

// LeaveTwice leaves twice with two keys: 200 both times, with the same epoch.
// Then a member commits the removal, and the leaver is added again.
func LeaveTwice(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	var epochs []int64
	for range 2 {
		d, err := bob.DraftLeave(convo)
		if err != nil {
			return err
		}
		answer, err := bob.Deliver(ctx, d)
		if err != nil {
			return err
		}
		out, err := mlsapi.DecodeLeaveConvoOutput(answer.Body)
		if err != nil {
			return err
		}
		epochs = append(epochs, out.NewEpoch)
	}
	if epochs[0] != epochs[1] || epochs[0] != 1 {
		w.Broken("leaving twice answered the epochs %v, want 1 and 1", epochs)
	}
	// The removal of one who has left is anybody's to commit.
	if err := carol.Tidy(ctx, convo); err != nil {
		return err
	}
	if err := alice.Send(ctx, convo, "not for bob"); err != nil {
		return err
	}
	if err := alice.Add(ctx, convo, bob.Account.DID); err != nil {
		return err
	}
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if err := carol.Sync(ctx, convo); err != nil {
		return err
	}
	// A member that has not left is only the creator's to remove.
	d, err := carol.DraftRemove(convo, bob.Account.DID)
	if err != nil {
		return err
	}
	if _, err := carol.Deliver(ctx, d); ErrorName(err) != mlsapi.ErrNotPermitted {
		w.Broken("a member removed another: %v, want NotPermitted", err)
	}
	if err := bob.Send(ctx, convo, "back again"); err != nil {
		return err
	}
	return alice.Remove(ctx, convo, carol.Account.DID)
}
