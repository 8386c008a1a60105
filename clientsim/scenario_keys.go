package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
)

// NoKey repeats writes that have no key at all: a message is known by its
// ciphertext, a KeyPackage by its ref, a leave by its being done.
func NoKey(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	alice, bob := phones[0], phones[1]
	d, err := alice.DraftSend(convo, "keyless")
	if err != nil {
		return err
	}
	keyless, err := withoutKey(d.Call)
	if err != nil {
		return err
	}
	answers, err := w.atOnce(ctx, alice, keyless, 5)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if !bytes.Equal(a.Body, answers[0].Body) {
			w.Broken("one ciphertext without a key: answered %q and %q", a.Body, answers[0].Body)
		}
	}
	alice.disk.Write(map[string][]byte{outboxPrefix + d.Call.Key: nil})
	d.Call = keyless
	if err := alice.Settle(d, answers[0]); err != nil {
		return err
	}
	kp, err := bob.device.KeyPackage()
	if err != nil {
		return err
	}
	var bodies [][]byte
	for range 2 {
		answer, err := w.net.Do(ctx, bob.Account, publishCall(kp, bob.suite, ""))
		if err != nil {
			return err
		}
		bodies = append(bodies, answer.Body)
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		w.Broken("one KeyPackage without a key: answered %q and %q", bodies[0], bodies[1])
	}
	return nil
}

// withoutKey is the same message without its key.
func withoutKey(call Call) (Call, error) {
	in, err := mlsapi.DecodeSendMessageInput(call.Body)
	if err != nil {
		return Call{}, err
	}
	in.IdempotencyKey = nil
	return procedure(call.Method.String(), call.Convo, "", in), nil
}

// KeyOtherBody reuses a key with another ciphertext: the second message must
// neither be swallowed nor answered with the first one's answer.
func KeyOtherBody(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	alice := phones[0]
	d, err := alice.DraftSend(convo, "the first under this key")
	if err != nil {
		return err
	}
	if _, err := alice.Deliver(ctx, d); err != nil {
		return err
	}
	group, err := alice.Group(convo)
	if err != nil {
		return err
	}
	other, err := group.Encrypt([]byte("the second under this key"))
	if err != nil {
		return err
	}
	_, err = w.net.Do(ctx, alice.Account, sendCall(convo, alice.Account.DID, group.Epoch(), other, d.Call.Key))
	var named *CallError
	if !errors.As(err, &named) {
		return fmt.Errorf("a key was reused with another body: %w", errors.Join(err, errors.New("no refusal")))
	}
	if named.Status != 409 || named.Name != mlsapi.ErrIdempotencyConflict {
		w.Broken("a key reused with another body: %v", named)
	}
	if got := named.Header.Get("X-Idempotency-Conflict"); got != "body-mismatch" {
		w.Broken("X-Idempotency-Conflict is %q, want body-mismatch", got)
	}
	if !strings.Contains(named.Message, "ciphertext") || strings.Contains(named.Message, "epoch") {
		w.Broken("the conflict has to name the field that differs, and no other: %q", named.Message)
	}
	return alice.Send(ctx, convo, "the second under a key of its own")
}

// KeyOtherCaller has two callers use the same key: neither may hear the
// other's answer.
func KeyOtherCaller(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	key := newKey()
	var bodies [][]byte
	for i, p := range phones {
		d, err := p.DraftSend(convo, fmt.Sprintf("under a shared key, %d", i))
		if err != nil {
			return err
		}
		in, err := mlsapi.DecodeSendMessageInput(d.Call.Body)
		if err != nil {
			return err
		}
		in.IdempotencyKey = &key
		old := d.Call.Key
		d.Call = procedure(mlsapi.NSIDSendMessage, convo, key, in)
		p.disk.Write(map[string][]byte{outboxPrefix + old: nil})
		answer, err := p.Deliver(ctx, d)
		if err != nil {
			return err
		}
		if answer.Replayed() {
			w.Broken("%s got an answer to another caller's request", p.Name)
		}
		bodies = append(bodies, answer.Body)
	}
	if slices.Equal(bodies[0], bodies[1]) {
		w.Broken("two callers got the same answer: %q", bodies[0])
	}
	return w.SyncAll(ctx, convo, phones...)
}
