package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// NoKey repeats writes without any key. A message is known by its ciphertext, a KeyPackage by its
// ref, and a second leave changes nothing.
func NoKey(ctx context.Context, w *testbed.World) error {
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
	answers, err := w.AtOnce(ctx, alice, keyless, 5)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if !bytes.Equal(a.Body, answers[0].Body) {
			w.Broken("one ciphertext without a key: answered %q and %q", a.Body, answers[0].Body)
		}
	}
	alice.Disk.Write(map[string][]byte{client.OutboxPrefix + d.Call.Key: nil})
	d.Call = keyless
	if err := alice.Acknowledge(ctx, d, answers[0]); err != nil {
		return err
	}
	kp, err := bob.Device.KeyPackage()
	if err != nil {
		return err
	}
	var bodies [][]byte
	for range 2 {
		answer, err := w.Net.Do(ctx, bob.Account, xrpc.PublishCall(kp, bob.Suite, ""))
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
func withoutKey(call xrpc.Call) (xrpc.Call, error) {
	in, err := mlsapi.DecodeSendMessageInput(call.Body)
	if err != nil {
		return xrpc.Call{}, err
	}
	in.IdempotencyKey = nil
	return xrpc.Procedure(call.Method.String(), call.Convo, "", in), nil
}

// KeyOtherBody reuses a key with another ciphertext. The server must neither drop the second
// message nor answer it with the first answer.
func KeyOtherBody(ctx context.Context, w *testbed.World) error {
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
	_, err = w.Net.Do(ctx, alice.Account, xrpc.SendCall(convo, alice.Account.DID, group.Epoch(), other, d.Call.Key))
	var named *xrpc.CallError
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

// KeyOtherCaller makes two callers use the same key. Neither may get the other's answer.
func KeyOtherCaller(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	key := xrpc.NewKey()
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
		d.Call = xrpc.Procedure(mlsapi.NSIDSendMessage, convo, key, in)
		p.Disk.Write(map[string][]byte{client.OutboxPrefix + old: nil})
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
