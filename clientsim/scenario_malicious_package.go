package clientsim

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// MaliciousKeyPackage publishes KeyPackages that nobody should be handed:
// another's, of another's name, damaged, or with an init_key that was used
// before. All are refused, and whoever claims afterwards gets a good one.
func MaliciousKeyPackage(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	bob, mallory := phones[0], phones[1]
	used, err := mallory.device.KeyPackage()
	if err != nil {
		return err
	}
	d, err := mallory.draftPackage(used)
	if err != nil {
		return err
	}
	if _, err := mallory.Deliver(ctx, d); err != nil {
		return err
	}
	bad, err := w.badPackages(bob, mallory, used.Message)
	if err != nil {
		return err
	}
	for what, kp := range bad {
		if got := w.refusal(ctx, mallory.Account, publishCall(kp, w.suite, newKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s: %v, want InvalidKeyPackage", what, got)
		}
	}
	kp, err := mallory.device.KeyPackage()
	if err != nil {
		return err
	}
	other := SuiteX25519
	if w.suite == other {
		other = SuiteP256
	}
	if got := w.refusal(ctx, mallory.Account, publishCall(kp, other, newKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
		w.Broken("publishKeyPackage under the name of another suite: %v, want InvalidKeyPackage", got)
	}
	convo, err := bob.Create(ctx, mallory.Account.DID)
	if err != nil {
		return err
	}
	if err := mallory.Join(ctx, convo); err != nil {
		return err
	}
	// The init_key of a KeyPackage that was used up is used for good.
	for what, kp := range bad {
		if got := w.refusal(ctx, mallory.Account, publishCall(kp, w.suite, newKey())); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s, later: %v, want InvalidKeyPackage", what, got)
		}
	}
	return mallory.Send(ctx, convo, "I am who I am")
}

// badPackages makes KeyPackages that mallory must not publish. It has published
// the used one.
func (w *World) badPackages(bob, mallory *Phone, used []byte) (map[string]KeyPackage, error) {
	bad := map[string]KeyPackage{}
	mask, err := NewDevice(bob.Account.DID.String(), w.suite)
	if err != nil {
		return nil, err
	}
	if bad["a KeyPackage in another's name"], err = mask.KeyPackage(); err != nil {
		return nil, err
	}
	if bad["another's KeyPackage"], err = bob.device.KeyPackage(); err != nil {
		return nil, err
	}
	if bad["a KeyPackage with a leaf that nobody has signed"], err = breakLeaf(mallory.device); err != nil {
		return nil, err
	}
	if bad["a KeyPackage with a used init_key"], err = replayInitKey(mallory.device, used); err != nil {
		return nil, err
	}
	kp, err := mallory.device.KeyPackage()
	if err != nil {
		return nil, err
	}
	m := &mischief{w: w}
	for i := range bitFlips {
		bad[fmt.Sprintf("a KeyPackage with one bit flipped (%d)", i)] = KeyPackage{Message: m.flipped(kp.Message, 0)}
	}
	return bad, nil
}
