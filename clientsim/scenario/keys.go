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
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// NoKey repeats writes without any key. The server recognises a message by its ciphertext and a
// KeyPackage by its ref, and a second leave changes nothing.
func NoKey(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice, bob := phones[0], phones[1]
	d := Must(alice.DraftSend(convo, "keyless"))
	keyless := withoutKey(d.Call)
	answers := Must(w.AtOnce(ctx, alice, keyless, 5))
	for _, a := range answers {
		if !bytes.Equal(a.Body, answers[0].Body) {
			w.Broken("one ciphertext without a key: answered %q and %q", a.Body, answers[0].Body)
		}
	}
	alice.Disk.Write(map[string][]byte{client.OutboxPrefix + d.Call.Key: nil})
	d.Call = keyless
	Check(alice.Acknowledge(ctx, d, answers[0]))
	kp := Must(bob.Device.KeyPackage())
	var bodies [][]byte
	for range 2 {
		answer := Must(w.Net.Do(ctx, bob.Account, xrpc.PublishCall(kp, bob.Suite, "")))
		bodies = append(bodies, answer.Body)
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		w.Broken("one KeyPackage without a key: answered %q and %q", bodies[0], bodies[1])
	}
}

// withoutKey returns the same message without its key.
func withoutKey(call xrpc.Call) xrpc.Call {
	in := Must(mlsapi.DecodeSendMessageInput(call.Body))
	in.IdempotencyKey = nil
	return xrpc.Procedure(call.Method.String(), call.Convo, "", in)
}

// KeyOtherBody reuses a key with another ciphertext. The server must neither drop the second
// message nor answer it with the first answer.
func KeyOtherBody(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	alice := phones[0]
	d := Must(alice.DraftSend(convo, "the first under this key"))
	Must(alice.Deliver(ctx, d))
	group := Must(alice.Group(convo))
	other := Must(group.Encrypt([]byte("the second under this key")))
	_, err := w.Net.Do(ctx, alice.Account, xrpc.SendCall(convo, alice.Account.DID, group.Epoch(), other, d.Call.Key))
	var named *xrpc.CallError
	if !errors.As(err, &named) {
		Fail("a key was reused with another body: %w", errors.Join(err, errors.New("no refusal")))
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
	Check(alice.Send(ctx, convo, "the second under a key of its own"))
}

// KeyOtherCaller makes two callers use the same key. Neither may get the other's answer.
func KeyOtherCaller(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	key := xrpc.NewKey()
	var bodies [][]byte
	for i, p := range phones {
		d := Must(p.DraftSend(convo, fmt.Sprintf("under a shared key, %d", i)))
		in := Must(mlsapi.DecodeSendMessageInput(d.Call.Body))
		in.IdempotencyKey = &key
		old := d.Call.Key
		d.Call = xrpc.Procedure(mlsapi.NSIDSendMessage, convo, key, in)
		p.Disk.Write(map[string][]byte{client.OutboxPrefix + old: nil})
		answer := Must(p.Deliver(ctx, d))
		if answer.Replayed() {
			w.Broken("%s got an answer to another caller's request", p.Name)
		}
		bodies = append(bodies, answer.Body)
	}
	if slices.Equal(bodies[0], bodies[1]) {
		w.Broken("two callers got the same answer: %q", bodies[0])
	}
	Check(w.SyncAll(ctx, convo, phones...))
}
