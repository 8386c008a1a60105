package scenario

import (
	"bytes"
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// RetryAfterLeave retries a message and the leave itself after the sender has left. The server must
// look up the key before it checks the roster.
func RetryAfterLeave(ctx context.Context, w *testbed.World) error {
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
	if _, err := w.DeliverWithLostAnswer(ctx, bob, "leaveConvo", leave); err != nil {
		return err
	}
	again, err := w.Net.Do(ctx, bob.Account, d.Call)
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
	if _, err := bob.Deliver(ctx, fresh); xrpc.ErrorName(err) != mlsapi.ErrNotMember {
		w.Broken("a new message of one who left: %v, want NotMember", err)
	}
	if err := alice.CommitRemovals(ctx, convo); err != nil {
		return err
	}
	return alice.Send(ctx, convo, "without him")
}

// LeaveTwice leaves twice with two keys. Both answers are 200 with the same epoch. Then a member
// commits the removal, and the leaver is added again.
func LeaveTwice(ctx context.Context, w *testbed.World) error {
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
		out, err := xrpc.Decode[mlsapi.LeaveConvoOutput](answer.Body)
		if err != nil {
			return err
		}
		epochs = append(epochs, out.NewEpoch)
	}
	if epochs[0] != epochs[1] || epochs[0] != 1 {
		w.Broken("leaving twice answered the epochs %v, want 1 and 1", epochs)
	}
	// Any member may commit the removal of one that has left.
	if err := carol.CommitRemovals(ctx, convo); err != nil {
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
	// Only the creator may remove a member that has not left.
	d, err := carol.DraftRemove(convo, bob.Account.DID)
	if err != nil {
		return err
	}
	if _, err := carol.Deliver(ctx, d); xrpc.ErrorName(err) != mlsapi.ErrNotPermitted {
		w.Broken("a member removed another: %v, want NotPermitted", err)
	}
	if err := bob.Send(ctx, convo, "back again"); err != nil {
		return err
	}
	return alice.Remove(ctx, convo, carol.Account.DID)
}
