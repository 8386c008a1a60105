package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
)

// ExpiredKey repeats writes when the lifetimes of their keys are over: each is
// run as new, says so, and is stopped by what it has done itself. A message's
// key does not expire.
func ExpiredKey(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	packages, err := alice.Claim(ctx, "", dids(phones[1:2]))
	if err != nil {
		return err
	}
	create, err := alice.DraftCreate(dids(phones[1:2]), packages)
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, create); err != nil {
		return err
	}
	convo := w.model.snapshot()[0].id
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if err := w.guarded(ctx, alice, create, mlsapi.ErrGroupAlreadyExists); err != nil {
		return err
	}
	if packages, err = alice.Claim(ctx, convo, dids(phones[2:])); err != nil {
		return err
	}
	add, err := alice.DraftAdd(convo, dids(phones[2:]), packages)
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, add); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := w.guarded(ctx, alice, add, mlsapi.ErrEpochMismatch); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	commit, err := carol.DraftCommit(convo, Change{})
	if err != nil {
		return err
	}
	if _, err := carol.Deliver(ctx, commit); err != nil {
		return err
	}
	if err := w.guarded(ctx, carol, commit, mlsapi.ErrEpochMismatch); err != nil {
		return err
	}
	if err := w.expiredPackage(ctx, bob); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	leave, err := bob.DraftLeave(convo)
	if err != nil {
		return err
	}
	if err := w.sameAfter(ctx, bob, leave); err != nil {
		return err
	}
	if err := alice.Tidy(ctx, convo); err != nil {
		return err
	}
	return carol.Send(ctx, convo, "nothing has happened twice")
}

// guarded repeats a write, whose key expires before, and wants it refused.
func (w *World) guarded(ctx context.Context, p *Phone, d *Draft, want string) error {
	if err := w.expire(ctx, p.Account, d.Call); err != nil {
		return err
	}
	for range 2 { // a refusal is not recorded, so the key is as expired as before
		_, err := w.net.Do(ctx, p.Account, d.Call)
		var named *CallError
		if !errors.As(err, &named) {
			return fmt.Errorf("%s under an expired key: %w", d.Call.Method, errors.Join(err, errors.New("no refusal")))
		}
		if named.Name != want || !expiredKey(named.Header) {
			w.Broken("%s under an expired key: %v (expired: %t), want %s", d.Call.Method, named, expiredKey(named.Header), want)
		}
	}
	return nil
}

// expiredPackage publishes a KeyPackage twice, and there is one more of them.
func (w *World) expiredPackage(ctx context.Context, p *Phone) error {
	before, err := p.Stats(ctx)
	if err != nil {
		return err
	}
	d, err := p.DraftPublish()
	if err != nil {
		return err
	}
	if err := w.sameAfter(ctx, p, d); err != nil {
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

// sameAfter delivers a write and repeats it after its key has expired: it is
// not a replay, and the answer is the same all the same.
func (w *World) sameAfter(ctx context.Context, p *Phone, d *Draft) error {
	first, err := p.Deliver(ctx, d)
	if err != nil {
		return err
	}
	if err := w.expire(ctx, p.Account, d.Call); err != nil {
		return err
	}
	again, err := w.net.Do(ctx, p.Account, d.Call)
	if err != nil {
		return err
	}
	if again.Replayed() || !expiredKey(again.Header) || !bytes.Equal(again.Body, first.Body) {
		w.Broken("%s under an expired key: answered %q (replay: %t, expired: %t), the first was %q",
			d.Call.Method, again.Body, again.Replayed(), expiredKey(again.Header), first.Body)
	}
	replay, err := w.net.Do(ctx, p.Account, d.Call)
	if err == nil && (!replay.Replayed() || expiredKey(replay.Header)) {
		w.Broken("%s under a key that was used anew: replay: %t, expired: %t", d.Call.Method, replay.Replayed(), expiredKey(replay.Header))
	}
	return err
}
