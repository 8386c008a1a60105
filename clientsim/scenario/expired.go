package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// ExpiredKey repeats writes after their keys have expired. Each runs as a new write, says so, and
// is stopped by its own earlier effect. A message's key does not expire.
func ExpiredKey(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	packages, err := alice.Claim(ctx, "", testbed.DIDs(phones[1:2]))
	if err != nil {
		return err
	}
	create, err := alice.DraftCreate(testbed.DIDs(phones[1:2]), packages)
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, create); err != nil {
		return err
	}
	convo := w.Model.Snapshot()[0].ID
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if err := guarded(ctx, w, alice, create, mlsapi.ErrGroupAlreadyExists); err != nil {
		return err
	}
	if packages, err = alice.Claim(ctx, convo, testbed.DIDs(phones[2:])); err != nil {
		return err
	}
	add, err := alice.DraftAdd(convo, testbed.DIDs(phones[2:]), packages)
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, add); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := guarded(ctx, w, alice, add, mlsapi.ErrEpochMismatch); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	commit, err := carol.DraftCommit(convo, mlsclient.Change{})
	if err != nil {
		return err
	}
	if _, err := carol.Deliver(ctx, commit); err != nil {
		return err
	}
	if err := guarded(ctx, w, carol, commit, mlsapi.ErrEpochMismatch); err != nil {
		return err
	}
	if err := expiredPackage(ctx, w, bob); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	leave, err := bob.DraftLeave(convo)
	if err != nil {
		return err
	}
	if err := sameAfter(ctx, w, bob, leave); err != nil {
		return err
	}
	if err := alice.CommitRemovals(ctx, convo); err != nil {
		return err
	}
	return carol.Send(ctx, convo, "nothing has happened twice")
}

// guarded repeats a write after its key has expired. It must be refused.
func guarded(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft, want string) error {
	if err := w.Expire(ctx, p.Account, d.Call); err != nil {
		return err
	}
	for range 2 { // a refusal is not recorded, so the key stays expired
		_, err := w.Net.Do(ctx, p.Account, d.Call)
		var named *xrpc.CallError
		if !errors.As(err, &named) {
			return fmt.Errorf("%s under an expired key: %w", d.Call.Method, errors.Join(err, errors.New("no refusal")))
		}
		if named.Name != want || !xrpc.ExpiredKey(named.Header) {
			w.Broken("%s under an expired key: %v (expired: %t), want %s", d.Call.Method, named, xrpc.ExpiredKey(named.Header), want)
		}
	}
	return nil
}

// expiredPackage publishes a KeyPackage twice. There must still be only one more.
func expiredPackage(ctx context.Context, w *testbed.World, p *client.Phone) error {
	before, err := p.Stats(ctx)
	if err != nil {
		return err
	}
	d, err := p.DraftPublish()
	if err != nil {
		return err
	}
	if err := sameAfter(ctx, w, p, d); err != nil {
		return err
	}
	after, err := p.Stats(ctx)
	if err != nil {
		return err
	}
	if after.Available != before.Available+1 {
		w.Broken("%d KeyPackages were available and %d are, after one was published twice", before.Available, after.Available)
	}
	return nil
}

// sameAfter delivers a write and repeats it after its key has expired. It is not a replay, and the
// answer is still the same.
func sameAfter(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft) error {
	first, err := p.Deliver(ctx, d)
	if err != nil {
		return err
	}
	if err := w.Expire(ctx, p.Account, d.Call); err != nil {
		return err
	}
	again, err := w.Net.Do(ctx, p.Account, d.Call)
	if err != nil {
		return err
	}
	if again.Replayed() || !xrpc.ExpiredKey(again.Header) || !bytes.Equal(again.Body, first.Body) {
		w.Broken("%s under an expired key: answered %q (replay: %t, expired: %t), the first was %q",
			d.Call.Method, again.Body, again.Replayed(), xrpc.ExpiredKey(again.Header), first.Body)
	}
	replay, err := w.Net.Do(ctx, p.Account, d.Call)
	if err == nil && (!replay.Replayed() || xrpc.ExpiredKey(replay.Header)) {
		w.Broken("%s under a key that was used anew: replay: %t, expired: %t", d.Call.Method, replay.Replayed(), xrpc.ExpiredKey(replay.Header))
	}
	return err
}
