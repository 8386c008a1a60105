package scenario

import (
	"bytes"
	"context"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// RetryAfterLeave retries a message and the leave itself after the sender has left. The server must
// look up the key before it checks the roster.
func RetryAfterLeave(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 3))
	alice, bob := phones[0], phones[1]
	d := Must(bob.DraftSend(convo, "my last words"))
	first := Must(bob.Deliver(ctx, d))
	leave := Must(bob.DraftLeave(convo))
	Must(w.DeliverWithLostAnswer(ctx, bob, leave))
	again, err := w.Net.Do(ctx, bob.Account, d.Call)
	Check(errs.Wrap(err, "a stored message retried after its sender left"))
	if !again.Replayed() || !bytes.Equal(first.Body, again.Body) {
		w.Broken("a message retried after its sender left: %q, first %q", again.Body, first.Body)
	}
	fresh := Must(bob.DraftSend(convo, "one more word"))
	if _, err := bob.Deliver(ctx, fresh); xrpc.ErrorName(err) != mlsapi.ErrNotMember {
		w.Broken("a new message of one who left: %v, want NotMember", err)
	}
	Check(alice.CommitRemovals(ctx, convo))
	Check(alice.Send(ctx, convo, "without him"))
}

// LeaveTwice leaves twice with two keys. Both answers are 200 with the same epoch. Then a member
// commits the removal, and the leaver is added again.
func LeaveTwice(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	var epochs []int64
	for range 2 {
		d := Must(bob.DraftLeave(convo))
		answer := Must(bob.Deliver(ctx, d))
		out := Must(xrpc.Decode[mlsapi.LeaveConvoOutput](answer.Body))
		epochs = append(epochs, out.NewEpoch)
	}
	if epochs[0] != epochs[1] || epochs[0] != 1 {
		w.Broken("leaving twice answered the epochs %v, want 1 and 1", epochs)
	}
	// Any member may commit the removal of a member that has left.
	Check(carol.CommitRemovals(ctx, convo))
	Check(alice.Send(ctx, convo, "not for bob"))
	Check(alice.Add(ctx, convo, bob.Account.DID))
	Check(bob.Join(ctx, convo))
	Check(carol.Sync(ctx, convo))
	// Only the creator may remove a member that has not left.
	d := Must(carol.DraftRemove(convo, bob.Account.DID))
	if _, err := carol.Deliver(ctx, d); xrpc.ErrorName(err) != mlsapi.ErrNotPermitted {
		w.Broken("a member removed another: %v, want NotPermitted", err)
	}
	Check(bob.Send(ctx, convo, "back again"))
	Check(alice.Remove(ctx, convo, carol.Account.DID))
}
