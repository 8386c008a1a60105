package clientsim

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Push has phones that fetch when they are called, and at no other time: after
// every burst of messages they must have read the last of it. Whoever sends is
// not called, a Welcome calls the device that it is for, and whoever has
// unregistered is left alone.
func Push(ctx context.Context, w *World) error {
	return w.withReceiver(ctx, func(r *Receiver) error { return w.push(ctx, r) })
}

func (w *World) push(ctx context.Context, r *Receiver) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	alice, bob := phones[0], phones[1]
	atAlice, err := alice.bellFor(ctx, r)
	if err != nil {
		return err
	}
	atBob := r.Bell(bob.deviceID())
	if err := w.registrations(ctx, r, bob, atBob); err != nil {
		return err
	}
	for burst := range 3 {
		if err := w.burst(ctx, alice, bob, atBob, convo, burst); err != nil {
			return err
		}
	}
	carol, atCarol, err := w.pushedWelcome(ctx, r, alice, convo)
	if err != nil {
		return err
	}
	if n := len(atAlice.Rings()); n > 0 {
		w.Broken("%s was called %d times, and nobody else has sent anything", alice.Name, n)
	}
	if err := w.unregistrations(ctx, bob, atBob); err != nil {
		return err
	}
	// A call that was under way then may come during the first message.
	seen := len(atCarol.Rings())
	if err := alice.Send(ctx, convo, "goodbye, bells"); err != nil {
		return err
	}
	if err := w.woken(ctx, carol, atCarol, convo, "goodbye, bells", seen); err != nil {
		return err
	}
	if err := w.hushed(ctx, atBob, alice, carol, atCarol, convo, "unregistered"); err != nil {
		return err
	}
	for _, b := range []*Bell{atAlice, atBob, atCarol} {
		for key, n := range byKey(b.Rings()) {
			if n > 1 {
				w.Broken("nothing went wrong, and %s came %d times", key, n)
			}
		}
	}
	return nil
}

// registrations: a registration is one, however often it is asked for, and its
// secret is the URL's.
func (w *World) registrations(ctx context.Context, r *Receiver, p *Phone, b *Bell) error {
	call := registerCall(b.Device, b.URL, newKey())
	answers, err := w.atOnce(ctx, p, call, 2)
	if err != nil {
		return err
	}
	w.oneOriginal("registerPushTarget", answers)
	first, err := p.registered(b, call, answers[0])
	if err != nil {
		return err
	}
	var again string
	if err := w.losing("registerPushTarget", func() (err error) {
		again, err = p.Register(ctx, b)
		return err
	}); err != nil {
		return err
	}
	elsewhere := r.Bell(b.Device)
	other, err := p.Register(ctx, elsewhere)
	if err != nil {
		return err
	}
	if again != first || other == first {
		w.Broken("the secret of one URL was %q and %q, and that of another %q", first, again, other)
	}
	// What is asked again now is answered as then, and changes nothing back.
	answer, err := w.net.Do(ctx, p.Account, call)
	if err != nil {
		return err
	}
	if same, err := p.registered(b, call, answer); err != nil || same != first || !answer.Replayed() {
		w.Broken("registered again under its key: secret %q (replay: %t), the first was %q: %v", same, answer.Replayed(), first, err)
	}
	if _, err := p.Register(ctx, b); err != nil {
		return err
	}
	return nil
}

func (w *World) unregistrations(ctx context.Context, p *Phone, b *Bell) error {
	call := unregisterCall(b.Device, newKey())
	answers, err := w.atOnce(ctx, p, call, 2)
	if err != nil {
		return err
	}
	w.oneOriginal("unregisterPushTarget", answers)
	p.model.Settled(p.Account, call)
	return w.losing("unregisterPushTarget", func() error {
		removed, err := p.Unregister(ctx, b)
		if err == nil && removed {
			w.Broken("a device was unregistered twice, and was registered both times")
		}
		return err
	})
}

// burst sends some messages and waits for the last of them to be read.
func (w *World) burst(ctx context.Context, from, to *Phone, at *Bell, convo string, burst int) error {
	seen, text := len(at.Rings()), ""
	const messages = 6
	for i := range messages {
		text = fmt.Sprintf("burst %d, message %d", burst, i)
		if err := from.Send(ctx, convo, text); err != nil {
			return err
		}
		if err := pause(ctx, time.Duration(w.rng.IntN(500))*time.Millisecond); err != nil {
			return err
		}
	}
	if err := w.woken(ctx, to, at, convo, text, seen); err != nil {
		return err
	}
	if n := len(at.Rings()) - seen; n > messages {
		w.Broken("%d calls for %d messages", n, messages)
	}
	return nil
}

// pushedWelcome adds a phone whose owner has another device besides: the one
// that the Welcome is for is told of it, and the other is not.
func (w *World) pushedWelcome(ctx context.Context, r *Receiver, adder *Phone, convo string) (*Phone, *Bell, error) {
	phones, err := w.Phones(ctx, 1)
	if err != nil {
		return nil, nil, err
	}
	p := phones[0]
	at, err := p.bellFor(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	tablet := r.Bell("a tablet without KeyPackages")
	if _, err := p.Register(ctx, tablet); err != nil {
		return nil, nil, err
	}
	if err := adder.Add(ctx, convo, p.Account.DID); err != nil {
		return nil, nil, err
	}
	welcome := func(rings []ring) bool {
		return slices.ContainsFunc(rings, func(g ring) bool {
			note, err := g.note()
			return err == nil && note.Type == "welcome"
		})
	}
	if _, err := at.await(ctx, welcome); err != nil {
		w.Broken("nobody told %s of its Welcome: %v", p.Name, err)
	}
	if err := p.Join(ctx, convo); err != nil {
		return nil, nil, err
	}
	if welcome(tablet.Rings()) {
		w.Broken("a device was told of another one's Welcome")
	}
	return p, at, nil
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PushReceiverFails has a receiver that answers 500, 503 and nothing: the call
// is repeated under its key, and whoever looks at the key hears of every job
// once. What it refuses is not repeated, and 410 ends the registration.
func PushReceiverFails(ctx context.Context, w *World) error {
	return w.withReceiver(ctx, func(r *Receiver) error { return w.failing(ctx, r) })
}

func (w *World) failing(ctx context.Context, r *Receiver) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	alice, bob, carol := phones[0], phones[1], phones[2]
	atBob, err := bob.bellFor(ctx, r)
	if err != nil {
		return err
	}
	atCarol, err := carol.bellFor(ctx, r)
	if err != nil {
		return err
	}
	for _, answers := range [][]int{{500}, {hangUp}, {503}, {429, 500}} {
		if err := w.failed(ctx, alice, atBob, convo, answers...); err != nil {
			return err
		}
	}
	if err := bob.Sync(ctx, convo); err != nil {
		return err
	}
	if err := w.superseded(ctx, alice, bob, atBob, convo); err != nil {
		return err
	}
	if err := w.refused(ctx, alice, bob, atBob, convo); err != nil {
		return err
	}
	for key, n := range delivered(atBob.Rings()) {
		if n > 1 {
			w.Broken("%s was delivered %d times, although each was acknowledged", key, n)
		}
	}
	// Gone: nothing more comes, until the device registers again.
	if err := carol.Sync(ctx, convo); err != nil {
		return err
	}
	if _, err := w.called(ctx, alice, atBob, convo, 1, 410); err != nil {
		return err
	}
	if err := w.hushed(ctx, atBob, alice, carol, atCarol, convo, "gone"); err != nil {
		return err
	}
	if _, err := bob.Register(ctx, atBob); err != nil {
		return err
	}
	seen := len(atBob.Rings())
	if err := alice.Send(ctx, convo, "registered again"); err != nil {
		return err
	}
	return w.woken(ctx, bob, atBob, convo, "registered again", seen)
}

// called sends one message, has the calls for it answered so, and returns
// them when there are n.
func (w *World) called(ctx context.Context, from *Phone, at *Bell, convo string, n int, answers ...int) ([]ring, error) {
	before := len(at.Rings())
	at.Answer(answers...)
	if err := from.Send(ctx, convo, fmt.Sprintf("call %d: a receiver that answers %v", before, answers)); err != nil {
		return nil, err
	}
	rings, err := at.await(ctx, func(rings []ring) bool { return len(rings) >= before+n })
	if err != nil {
		return nil, fmt.Errorf("%d calls, want %d, of a receiver that answers %v: %w", len(rings)-before, n, answers, err)
	}
	return rings[before:], nil
}

// failed has the calls for one message fail: the ones that follow are the same.
func (w *World) failed(ctx context.Context, from *Phone, at *Bell, convo string, answers ...int) error {
	rings, err := w.called(ctx, from, at, convo, len(answers)+1, answers...)
	if err != nil {
		return err
	}
	if keys := byKey(rings); len(keys) != 1 {
		w.Broken("a call that was answered %v was repeated under another key: %v", answers, keys)
	}
	for i := range answers {
		if wait := rings[i+1].at.Sub(rings[i].at); answers[i] == 503 && wait < askedWait-100*time.Millisecond {
			w.Broken("a receiver that asked for %s was called again after %s", askedWait, wait)
		}
	}
	return nil
}

// superseded has a job wait for its next attempt while a message comes: the
// receiver hears of it under a key that it has not seen.
func (w *World) superseded(ctx context.Context, from, to *Phone, at *Bell, convo string) error {
	rings, err := w.called(ctx, from, at, convo, 1, 503)
	if err != nil {
		return err
	}
	seen, text := len(at.Rings()), "while the receiver was busy"
	if err := from.Send(ctx, convo, text); err != nil {
		return err
	}
	if _, err := at.await(ctx, func(all []ring) bool {
		return slices.ContainsFunc(all[seen:], func(g ring) bool { return g.key() != rings[0].key() })
	}); err != nil {
		w.Broken("a receiver that remembers keys never heard of %q: %v", text, err)
	}
	return w.woken(ctx, to, at, convo, text, seen)
}

// refused has a call refused for good: it is not repeated, and the next one comes.
func (w *World) refused(ctx context.Context, from, to *Phone, at *Bell, convo string) error {
	rings, err := w.called(ctx, from, at, convo, 1, 400)
	if err != nil {
		return err
	}
	for i := range 2 {
		seen, text := len(at.Rings()), fmt.Sprintf("after the refusal, %d", i)
		if err := from.Send(ctx, convo, text); err != nil {
			return err
		}
		if err := w.woken(ctx, to, at, convo, text, seen); err != nil {
			return err
		}
	}
	if n := byKey(at.Rings())[rings[0].key()]; n != 1 {
		w.Broken("a call that was refused was made %d times", n)
	}
	return nil
}

// delivered counts the acknowledged calls under each key.
func delivered(rings []ring) map[string]int {
	return byKey(slices.DeleteFunc(rings, func(g ring) bool { return g.answer/100 != 2 }))
}
