package scenario

import (
	"bytes"
	"context"
	"errors"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// ExpiredKey repeats writes after their keys have expired. Each runs as a new write, says so, and
// is stopped by its own earlier effect. A message's key does not expire.
func ExpiredKey(ctx context.Context, w *testbed.World) {
	phones := must(w.Phones(ctx, 3))
	alice, bob, carol := phones[0], phones[1], phones[2]
	packages := must(alice.Claim(ctx, "", testbed.DIDs(phones[1:2])))
	create := must(alice.DraftCreate(testbed.DIDs(phones[1:2]), packages))
	must(alice.Deliver(ctx, create))
	convo := w.Model.Snapshot()[0].ID
	check(bob.Join(ctx, convo))
	guarded(ctx, w, alice, create, mlsapi.ErrGroupAlreadyExists)
	packages = must(alice.Claim(ctx, convo, testbed.DIDs(phones[2:])))
	add := must(alice.DraftAdd(convo, testbed.DIDs(phones[2:]), packages))
	must(alice.Deliver(ctx, add))
	check(carol.Join(ctx, convo))
	guarded(ctx, w, alice, add, mlsapi.ErrEpochMismatch)
	check(w.SyncAll(ctx, convo, phones...))
	commit := must(carol.DraftCommit(convo, mlsclient.Change{}))
	must(carol.Deliver(ctx, commit))
	guarded(ctx, w, carol, commit, mlsapi.ErrEpochMismatch)
	expiredPackage(ctx, w, bob)
	check(w.SyncAll(ctx, convo, phones...))
	leave := must(bob.DraftLeave(convo))
	sameAfter(ctx, w, bob, leave)
	check(alice.CommitRemovals(ctx, convo))
	check(carol.Send(ctx, convo, "nothing has happened twice"))
}

// guarded repeats a write after its key has expired. It must be refused.
func guarded(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft, want string) {
	check(w.Expire(ctx, p.Account, d.Call))
	for range 2 { // a refusal is not recorded, so the key stays expired
		_, err := w.Net.Do(ctx, p.Account, d.Call)
		var named *xrpc.CallError
		if !errors.As(err, &named) {
			fail("%s under an expired key: %w", d.Call.Method, errors.Join(err, errors.New("no refusal")))
		}
		if named.Name != want || !xrpc.ExpiredKey(named.Header) {
			w.Broken("%s under an expired key: %v (expired: %t), want %s", d.Call.Method, named, xrpc.ExpiredKey(named.Header), want)
		}
	}
}

// expiredPackage publishes a KeyPackage twice. There must still be only one more.
func expiredPackage(ctx context.Context, w *testbed.World, p *client.Phone) {
	before := must(p.Stats(ctx))
	d := must(p.DraftPublish())
	sameAfter(ctx, w, p, d)
	after := must(p.Stats(ctx))
	if after.Available != before.Available+1 {
		w.Broken("%d KeyPackages were available and %d are, after one was published twice", before.Available, after.Available)
	}
}

// sameAfter delivers a write and repeats it after its key has expired. It is not a replay, and the
// answer is still the same.
func sameAfter(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) {
	first := must(p.Deliver(ctx, d))
	check(w.Expire(ctx, p.Account, d.Call))
	again := must(w.Net.Do(ctx, p.Account, d.Call))
	if again.Replayed() || !xrpc.ExpiredKey(again.Header) || !bytes.Equal(again.Body, first.Body) {
		w.Broken("%s under an expired key: answered %q (replay: %t, expired: %t), the first was %q",
			d.Call.Method, again.Body, again.Replayed(), xrpc.ExpiredKey(again.Header), first.Body)
	}
	replay, err := w.Net.Do(ctx, p.Account, d.Call)
	if err == nil && (!replay.Replayed() || xrpc.ExpiredKey(replay.Header)) {
		w.Broken("%s under a key that was used anew: replay: %t, expired: %t", d.Call.Method, replay.Replayed(), xrpc.ExpiredKey(replay.Header))
	}
	check(err)
}
