package scenario

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// RetryAfterEpoch loses the answer to a message, moves the epoch, and sends the message again. The
// server must look up the key before it checks the epoch. Otherwise the client encrypts again and
// the message is stored twice. The first attempt of a second message never arrives. The server must
// refuse its second attempt.
func RetryAfterEpoch(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice, bob := phones[0], phones[1]
	more := Must(w.Phones(ctx, 2))
	stored := Must(alice.DraftSend(convo, "stored, and the answer lost"))
	Check(w.LoseAnswer(ctx, alice, stored.Call))
	lost := Must(alice.DraftSend(convo, "never arrived in its epoch"))
	Check(bob.Add(ctx, convo, more[0].Account.DID))
	Check(more[0].Join(ctx, convo))
	answer, err := alice.Deliver(ctx, stored)
	Check(errs.Wrap(err, "a stored message retried after the epoch moved"))
	if !answer.Replayed() {
		w.Broken("a stored message retried after the epoch moved is answered as new")
	}
	_, err = alice.Deliver(ctx, lost)
	staleEpoch(w, err, 2)
	Check(alice.Sync(ctx, convo))
	Check(alice.Send(ctx, convo, lost.Text))
	retryAddAfterEpoch(ctx, w, convo, alice, bob, more[1])
}

// staleEpoch checks that the loser learns the current epoch from the error message alone.
func staleEpoch(w *testbed.World, err error, current uint64) {
	var named *xrpc.CallError
	if !errors.As(err, &named) || named.Name != mlsapi.ErrEpochMismatch || named.Status != 409 {
		w.Broken("a write of an old epoch: %v, want EpochMismatch", err)
		return
	}
	if epoch, ok := named.CurrentEpoch(); !ok || epoch != current {
		w.Broken("EpochMismatch says %q, want currentEpoch=%d in it", named.Message, current)
	}
}

// retryAddAfterEpoch checks that a replay of addMembers has the original newEpoch.
func retryAddAfterEpoch(ctx context.Context, w *testbed.World, convo string, alice, bob, joiner *client.Phone) {
	packages := Must(alice.Claim(ctx, convo, testbed.DIDs([]*client.Phone{joiner})))
	d := Must(alice.DraftAdd(convo, testbed.DIDs([]*client.Phone{joiner}), packages))
	first := Must(alice.Deliver(ctx, d))
	Check(w.SyncAll(ctx, convo, alice, bob))
	Check(joiner.Join(ctx, convo))
	more := Must(w.Phones(ctx, 1))
	Check(bob.Add(ctx, convo, more[0].Account.DID))
	again, err := w.Net.Do(ctx, alice.Account, d.Call)
	Check(errs.Wrap(err, "a stored commit retried after the epoch moved"))
	if !again.Replayed() || !bytes.Equal(first.Body, again.Body) {
		w.Broken("addMembers retried after the epoch moved: %q, first %q", again.Body, first.Body)
	}
	Check(more[0].Join(ctx, convo))
}

// SameEpoch makes several members commit in one epoch, at the same time and one by one. Exactly one
// commit per epoch is accepted.
func SameEpoch(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 4))
	joiners := Must(w.Phones(ctx, len(phones)))
	drafts := make([]*client.Draft, len(phones))
	packages := make([][][]byte, len(phones))
	for i, p := range phones {
		packages[i] = Must(p.Claim(ctx, convo, testbed.DIDs(joiners[i:i+1])))
		drafts[i] = Must(p.DraftAdd(convo, testbed.DIDs(joiners[i:i+1]), packages[i]))
	}
	won := race(ctx, w, phones, drafts)
	if len(won) != 1 {
		w.Broken("%d commits were accepted in one epoch, want 1", len(won))
	}
	// The losers discard their commits, read the winner's commit, and try again with the same
	// KeyPackages. Nobody has seen the Welcomes of the lost commits.
	for i, p := range phones {
		if slices.Contains(won, i) {
			continue
		}
		Check(p.Commit(ctx, convo, func() (*client.Draft, error) {
			return p.DraftAdd(convo, testbed.DIDs(joiners[i:i+1]), packages[i])
		}))
	}
	for _, p := range joiners {
		Check(p.Join(ctx, convo))
	}
	Check(w.SyncAll(ctx, convo, phones...))
	Check(phones[3].Send(ctx, convo, "all eight of us"))
}

// race delivers drafts at the same moment and returns the indexes of the winners.
func race(ctx context.Context, w *testbed.World, phones []*client.Phone, drafts []*client.Draft) []int {
	errs := make([]error, len(phones))
	Each(len(phones), len(phones), func(i int) { _, errs[i] = phones[i].Deliver(ctx, drafts[i]) })
	var won []int
	var lost []error
	for i, err := range errs {
		switch {
		case err == nil:
			won = append(won, i)
		case xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch:
			staleEpoch(w, err, drafts[i].Epoch)
			lost = append(lost, err)
		default:
			Check(err)
		}
	}
	if len(won) == 1 {
		winnerNamed(w, drafts[won[0]], lost)
	}
	return won
}

// winnerNamed checks that each loser learns the seq of the commit that won.
func winnerNamed(w *testbed.World, winner *client.Draft, lost []error) {
	for _, c := range w.Model.Snapshot() {
		made, ok := c.Commits[winner.Digest]
		for _, err := range lost {
			var named *xrpc.CallError
			if ok && errors.As(err, &named) && named.Seq != made.Seq {
				w.Broken("EpochMismatch says that seq %d has won, and it was %d", named.Seq, made.Seq)
			}
		}
	}
}
