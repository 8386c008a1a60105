package testbed

import (
	"github.com/bluesky-social/indigo/atproto/syntax"

	"bytes"
	"context"
	"errors"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// WithLostAnswer runs do while the first answer of a method is lost. If no answer was lost, the
// scenario is broken.
func (w *World) WithLostAnswer(method string, do func() error) error {
	return w.withLostAnswer(xrpc.NSID(method), do)
}

func (w *World) withLostAnswer(method syntax.NSID, do func() error) error {
	lost := &NextFault{Method: method, Fault: Fault{Kind: LoseAnswer}}
	w.Faults.Use(lost)
	defer w.Faults.Use(nil)
	err := do()
	if !lost.happened.Load() {
		w.Broken("the scenario itself: no answer of %s was lost", method)
	}
	return err
}

// LoseAnswer makes a call whose answer is lost, and does not repeat it.
func (w *World) LoseAnswer(ctx context.Context, p *client.Phone, call xrpc.Call) error {
	return w.withLostAnswer(call.Method, func() error {
		if _, err := w.Net.Once(ctx, p.Account, call); err == nil {
			return errors.New("the answer was not lost")
		}
		return nil
	})
}

// DeliverAfterKill loses the answer to a draft, kills the app and starts it again. The app delivers
// the draft from its disk.
func (w *World) DeliverAfterKill(ctx context.Context, p *client.Phone, d *client.Draft) (err error) {
	defer Catch(&err)
	Check(w.LoseAnswer(ctx, p, d.Call))
	p.Kill()
	Check(p.Launch())
	return p.Flush(ctx)
}

// DeliverWithLostAnswer delivers a draft whose first answer is lost, and compares the second answer
// with the first.
func (w *World) DeliverWithLostAnswer(ctx context.Context, p *client.Phone,
	d *client.Draft) (_ xrpc.Answer, err error) {
	defer Catch(&err)
	var answer xrpc.Answer
	Check(w.withLostAnswer(d.Call.Method, func() (err error) {
		answer, err = p.Deliver(ctx, d)
		return err
	}))
	original, ok := w.ledger.Original(p.Account, d.Call)
	if !ok {
		return xrpc.Answer{}, errors.New("the first answer never passed the wire")
	}
	if !answer.Replayed() || !bytes.Equal(original, answer.Body) {
		w.Broken("%s: after a lost answer came %q (replay: %t), the first was %q", d.Call.Method, answer.Body,
			answer.Replayed(), original)
	}
	return answer, nil
}

// CheckSameWelcome checks that a Welcome fetched again within the grace has the same bytes and the
// same lease.
func (w *World) CheckSameWelcome(a, b *mlsapi.GetWelcomeOutput) {
	if !bytes.Equal(a.Welcome, b.Welcome) {
		w.Broken("a Welcome fetched again has other bytes")
	}
	if *a.State != "in_flight" || *b.State != "in_flight" {
		w.Broken("a fetched Welcome is %s and %s, want in_flight", *a.State, *b.State)
	}
	if !a.GraceExpiresAt.Equal(b.GraceExpiresAt.Time) {
		w.Broken("fetching again moved the grace from %s to %s", a.GraceExpiresAt, b.GraceExpiresAt)
	}
}

// CheckConsumed checks that the server says that the Welcome is consumed.
func (w *World) CheckConsumed(ctx context.Context, p *client.Phone, convo string) {
	_, err := w.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ""))
	if xrpc.ErrorName(err) != mlsapi.ErrWelcomeConsumed {
		w.Broken("a confirmed Welcome fetched again: %v, want WelcomeConsumed", err)
	}
}

// AtOnce makes one call n times at the same moment and returns the answers. Each call retries by
// the retry rule.
func (w *World) AtOnce(ctx context.Context, p *client.Phone, call xrpc.Call, n int) ([]xrpc.Answer, error) {
	answers := make([]xrpc.Answer, n)
	return answers, Attempt(func() { Each(n, n, func(i int) { answers[i] = Must(w.Net.Do(ctx, p.Account, call)) }) })
}

// CheckOneOriginal checks that exactly one answer is the original, and that all have the same
// bytes.
func (w *World) CheckOneOriginal(method string, answers []xrpc.Answer) {
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
