package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// twice delivers a draft twice at the same time.
func twice(ctx context.Context, w *testbed.World, p *client.Phone, d *client.Draft, err error) error {
	if err != nil {
		return err
	}
	answers, err := w.AtOnce(ctx, p, d.Call, 2)
	if err != nil {
		return err
	}
	w.CheckOneOriginal(d.Call.Method.String(), answers)
	return p.Acknowledge(ctx, d, answers[0])
}

// TwiceAtOnce sends every keyed write twice at the same time.
func TwiceAtOnce(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	d, err := alice.DraftPublish()
	if err := twice(ctx, w, alice, d, err); err != nil {
		return err
	}
	packages, err := alice.Claim(ctx, "", testbed.DIDs(phones[1:2]))
	if err != nil {
		return err
	}
	d, err = alice.DraftCreate(testbed.DIDs(phones[1:2]), packages)
	if err := twice(ctx, w, alice, d, err); err != nil {
		return err
	}
	convo := w.Model.Snapshot()[0].ID
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if packages, err = bob.Claim(ctx, convo, testbed.DIDs(phones[2:])); err != nil {
		return err
	}
	d, err = bob.DraftAdd(convo, testbed.DIDs(phones[2:]), packages)
	if err := twice(ctx, w, bob, d, err); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	d, err = carol.DraftCommit(convo, mlsclient.Change{})
	if err := twice(ctx, w, carol, d, err); err != nil {
		return err
	}
	if err := bob.LoseState(false); err != nil {
		return err
	}
	info, err := bob.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	d, err = bob.DraftRejoin(convo, info)
	if err := twice(ctx, w, bob, d, err); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	d, err = carol.DraftSend(convo, "once, I hope")
	if err := twice(ctx, w, carol, d, err); err != nil {
		return err
	}
	d, err = bob.DraftLeave(convo)
	if err := twice(ctx, w, bob, d, err); err != nil {
		return err
	}
	return alice.CommitRemovals(ctx, convo)
}

// HundredAtOnce sends one message a hundred times at once: one row, one seq, a hundred identical
// answers.
func HundredAtOnce(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	d, err := phones[0].DraftSend(convo, "a hundred times")
	if err != nil {
		return err
	}
	answers, err := w.AtOnce(ctx, phones[0], d.Call, 100)
	if err != nil {
		return err
	}
	w.CheckOneOriginal("sendMessage", answers)
	if err := phones[0].Acknowledge(ctx, d, answers[0]); err != nil {
		return err
	}
	return phones[1].Send(ctx, convo, "and it stood there once")
}

// ClaimAtOnce makes eight callers claim from an account with four KeyPackages. Four callers get one
// each. Another request under the same key is the same claim.
func ClaimAtOnce(ctx context.Context, w *testbed.World) error {
	owner, err := w.Phone("owner")
	if err != nil {
		return err
	}
	if err := owner.Publish(ctx, 4); err != nil {
		return err
	}
	const callers = 8
	phones := make([]*client.Phone, callers)
	calls := make([]xrpc.Call, callers)
	for i := range phones {
		if phones[i], err = w.Phone(fmt.Sprintf("caller-%d", i)); err != nil {
			return err
		}
		calls[i] = xrpc.ClaimCall(testbed.DIDs([]*client.Phone{owner}), owner.Suite, "", xrpc.NewKey())
	}
	got := make([][][]byte, callers)
	errs := make([]error, callers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, p := range phones {
		all.Go(func() {
			<-start
			if got[i], errs[i] = p.ClaimWith(ctx, calls[i]); errors.Is(errs[i], client.ErrNoPackages) {
				errs[i] = nil
			}
		})
	}
	close(start)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	served := 0
	for i, p := range phones {
		served += len(got[i])
		if len(got[i]) == 0 {
			continue
		}
		again, err := p.ClaimWith(ctx, calls[i])
		if err != nil || len(again) != 1 || !bytes.Equal(again[0], got[i][0]) {
			w.Broken("a claim asked again under its key is another one (%v)", err)
		}
	}
	if served != 4 {
		w.Broken("%d of four KeyPackages were handed out to eight callers", served)
	}
	return nil
}
