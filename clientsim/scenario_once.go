package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
)

// atOnce makes one call n times at the same moment and returns the answers;
// each of the n goes on by the retry rule until it has one.
func (w *World) atOnce(ctx context.Context, p *Phone, call Call, n int) ([]Answer, error) {
	answers, errs := make([]Answer, n), make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			answers[i], errs[i] = w.net.Do(ctx, p.Account, call)
		})
	}
	close(start)
	all.Wait()
	return answers, errors.Join(errs...)
}

// oneOriginal: of several answers to one request one is the original, and all
// are the same bytes.
func (w *World) oneOriginal(method string, answers []Answer) {
	originals := 0
	for _, a := range answers {
		if !a.Replayed() {
			originals++
		}
		if !bytes.Equal(a.Body, answers[0].Body) {
			w.Broken("%s at once: answered %q and %q", method, a.Body, answers[0].Body)
		}
	}
	if originals != 1 {
		w.Broken("%s at once: %d answers are originals, want 1", method, originals)
	}
}

// twice delivers a draft that arrives twice at once.
func (w *World) twice(ctx context.Context, p *Phone, d *Draft, err error) error {
	if err != nil {
		return err
	}
	answers, err := w.atOnce(ctx, p, d.Call, 2)
	if err != nil {
		return err
	}
	w.oneOriginal(d.Call.Method.String(), answers)
	return p.Settle(d, answers[0])
}

// TwiceAtOnce sends every keyed write twice at the same time.
func TwiceAtOnce(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	d, err := alice.DraftPublish()
	if err := w.twice(ctx, alice, d, err); err != nil {
		return err
	}
	packages, err := alice.Claim(ctx, "", dids(phones[1:2]))
	if err != nil {
		return err
	}
	d, err = alice.DraftCreate(dids(phones[1:2]), packages)
	if err := w.twice(ctx, alice, d, err); err != nil {
		return err
	}
	convo := w.model.snapshot()[0].id
	if err := bob.Join(ctx, convo); err != nil {
		return err
	}
	if packages, err = bob.Claim(ctx, convo, dids(phones[2:])); err != nil {
		return err
	}
	d, err = bob.DraftAdd(convo, dids(phones[2:]), packages)
	if err := w.twice(ctx, bob, d, err); err != nil {
		return err
	}
	if err := carol.Join(ctx, convo); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	d, err = carol.DraftCommit(convo, Change{})
	if err := w.twice(ctx, carol, d, err); err != nil {
		return err
	}
	if err := bob.Lose(false); err != nil {
		return err
	}
	info, err := bob.GroupInfo(ctx, convo)
	if err != nil {
		return err
	}
	d, err = bob.DraftRejoin(convo, info)
	if err := w.twice(ctx, bob, d, err); err != nil {
		return err
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	d, err = carol.DraftSend(convo, "once, I hope")
	if err := w.twice(ctx, carol, d, err); err != nil {
		return err
	}
	d, err = bob.DraftLeave(convo)
	if err := w.twice(ctx, bob, d, err); err != nil {
		return err
	}
	return alice.Tidy(ctx, convo)
}

// HundredAtOnce sends one message a hundred times at the same time: one row,
// one seq, a hundred identical answers.
func HundredAtOnce(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	d, err := phones[0].DraftSend(convo, "a hundred times")
	if err != nil {
		return err
	}
	answers, err := w.atOnce(ctx, phones[0], d.Call, 100)
	if err != nil {
		return err
	}
	w.oneOriginal("sendMessage", answers)
	if err := phones[0].Settle(d, answers[0]); err != nil {
		return err
	}
	return phones[1].Send(ctx, convo, "and it stood there once")
}

// ClaimAtOnce has eight callers claim from one account that has published four
// KeyPackages: four of them get one each, and asking again under the same key
// is the same claim.
func ClaimAtOnce(ctx context.Context, w *World) error {
	owner, err := w.Phone("owner")
	if err != nil {
		return err
	}
	if err := owner.Publish(ctx, 4); err != nil {
		return err
	}
	const callers = 8
	phones := make([]*Phone, callers)
	calls := make([]Call, callers)
	for i := range phones {
		if phones[i], err = w.Phone(fmt.Sprintf("caller-%d", i)); err != nil {
			return err
		}
		calls[i] = claimCall(dids([]*Phone{owner}), owner.suite, "", newKey())
	}
	got := make([][][]byte, callers)
	errs := make([]error, callers)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, p := range phones {
		all.Go(func() {
			<-start
			if got[i], errs[i] = p.claim(ctx, calls[i]); errors.Is(errs[i], ErrNoPackages) {
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
		again, err := p.claim(ctx, calls[i])
		if err != nil || len(again) != 1 || !bytes.Equal(again[0], got[i][0]) {
			w.Broken("a claim asked again under its key is another one (%v)", err)
		}
	}
	if served != 4 {
		w.Broken("%d of four KeyPackages were handed out to eight callers", served)
	}
	return nil
}
