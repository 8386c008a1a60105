package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// MaliciousKeyPackage publishes KeyPackages that must never be handed out: another account's, one
// in another name, damaged ones, and one with a used init_key. All are refused. Later claims get a
// good one.
func MaliciousKeyPackage(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	bob, mallory := phones[0], phones[1]
	used, err := mallory.Device.KeyPackage()
	if err != nil {
		return err
	}
	d, err := mallory.DraftPackage(used)
	if err != nil {
		return err
	}
	if _, err := mallory.Deliver(ctx, d); err != nil {
		return err
	}
	bad, err := badPackages(w, bob, mallory, used.Message)
	if err != nil {
		return err
	}
	for what, kp := range bad {
		if got := w.Refusal(ctx, mallory.Account, xrpc.PublishCall(kp, w.Suite, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s: %v, want InvalidKeyPackage", what, got)
		}
	}
	kp, err := mallory.Device.KeyPackage()
	if err != nil {
		return err
	}
	other := mlsclient.SuiteX25519
	if w.Suite == other {
		other = mlsclient.SuiteP256
	}
	if got := w.Refusal(ctx, mallory.Account, xrpc.PublishCall(kp, other, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
		w.Broken("publishKeyPackage under the name of another suite: %v, want InvalidKeyPackage", got)
	}
	convo, err := bob.Create(ctx, mallory.Account.DID)
	if err != nil {
		return err
	}
	if err := mallory.Join(ctx, convo); err != nil {
		return err
	}
	// The init_key of a consumed KeyPackage stays used.
	for what, kp := range bad {
		if got := w.Refusal(ctx, mallory.Account, xrpc.PublishCall(kp, w.Suite, xrpc.NewKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s, later: %v, want InvalidKeyPackage", what, got)
		}
	}
	return mallory.Send(ctx, convo, "I am who I am")
}

// badPackages makes KeyPackages that mallory must not publish. used is one that it has published
// before.
func badPackages(w *testbed.World, bob, mallory *client.Phone, used []byte) (map[string]mlsclient.KeyPackage, error) {
	bad := map[string]mlsclient.KeyPackage{}
	mask, err := mlsclient.NewDevice(bob.Account.DID.String(), w.Suite)
	if err != nil {
		return nil, err
	}
	if bad["a KeyPackage in another's name"], err = mask.KeyPackage(); err != nil {
		return nil, err
	}
	if bad["another's KeyPackage"], err = bob.Device.KeyPackage(); err != nil {
		return nil, err
	}
	if bad["a KeyPackage with a leaf that nobody has signed"], err = mlsclient.BreakLeaf(mallory.Device); err != nil {
		return nil, err
	}
	if bad["a KeyPackage with a used init_key"], err = mlsclient.ReplayInitKey(mallory.Device, used); err != nil {
		return nil, err
	}
	kp, err := mallory.Device.KeyPackage()
	if err != nil {
		return nil, err
	}
	m := &misbehavior{w: w}
	for i := range bitFlips {
		bad[fmt.Sprintf("a KeyPackage with one bit flipped (%d)", i)] = mlsclient.KeyPackage{Message: m.flipped(kp.Message, 0)}
	}
	return bad, nil
}
