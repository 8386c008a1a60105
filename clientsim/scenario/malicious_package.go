package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// MaliciousKeyPackage publishes KeyPackages that must never be handed out: another account's, one
// in another name, damaged ones, and one with a used init_key. All are refused. Later claims get a
// good one.
func MaliciousKeyPackage(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 2))
	bob, mallory := phones[0], phones[1]
	used := Must(mallory.Device.KeyPackage())
	d := Must(mallory.DraftPackage(used))
	Must(mallory.Deliver(ctx, d))
	bad := badPackages(w, bob, mallory, used.Message)
	for what, kp := range bad {
		if got := w.Refusal(ctx, mallory.Account,
			xrpc.PublishCall(kp, w.Suite, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s: %v, want InvalidKeyPackage", what, got)
		}
	}
	kp := Must(mallory.Device.KeyPackage())
	other := mlsclient.SuiteX25519
	if w.Suite == other {
		other = mlsclient.SuiteP256
	}
	if got := w.Refusal(ctx, mallory.Account,
		xrpc.PublishCall(kp, other, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
		w.Broken("publishKeyPackage under the name of another suite: %v, want InvalidKeyPackage", got)
	}
	convo := Must(bob.Create(ctx, mallory.Account.DID))
	Check(mallory.Join(ctx, convo))
	// The init_key of a consumed KeyPackage stays used.
	for what, kp := range bad {
		if got := w.Refusal(ctx, mallory.Account,
			xrpc.PublishCall(kp, w.Suite, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s, later: %v, want InvalidKeyPackage", what, got)
		}
	}
	Check(mallory.Send(ctx, convo, "I am who I am"))
}

// badPackages makes KeyPackages that mallory must not publish. used is one that it has published
// before.
func badPackages(w *testbed.World, bob, mallory *client.Phone, used []byte) map[string]mlsclient.KeyPackage {
	bad := map[string]mlsclient.KeyPackage{}
	mask := Must(mlsclient.NewDevice(bob.Account.DID.String(), w.Suite))
	bad["a KeyPackage in another's name"] = Must(mask.KeyPackage())
	bad["another's KeyPackage"] = Must(bob.Device.KeyPackage())
	bad["a KeyPackage with a leaf that nobody has signed"] = Must(mlsclient.BreakLeaf(mallory.Device))
	bad["a KeyPackage with a used init_key"] = Must(mlsclient.ReplayInitKey(mallory.Device, used))
	kp := Must(mallory.Device.KeyPackage())
	m := &misbehavior{w: w}
	for i := range bitFlips {
		bad[fmt.Sprintf("a KeyPackage with one bit flipped (%d)", i)] = mlsclient.KeyPackage{Message: m.flipped(kp.Message,
			0)}
	}
	return bad
}
