package scenario

import (
	"context"
	"fmt"

	"mlsd/clientsim/testbed"
)

// verifiedMessages is how many messages VerifiedLog sends.
const verifiedMessages = 24

// VerifiedLog lets members check the log against the server's signed heads, and compare the heads
// that they send each other inside encrypted messages. One of them joins later.
func VerifiedLog(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	founders, late := phones[:2], phones[2]
	convo, err := founders[0].Create(ctx, founders[1].Account.DID)
	if err != nil {
		return err
	}
	if err := founders[1].Join(ctx, convo); err != nil {
		return err
	}
	for i := range verifiedMessages {
		if i == verifiedMessages/2 {
			if err := founders[0].Add(ctx, convo, late.Account.DID); err != nil {
				return err
			}
			if err := late.Join(ctx, convo); err != nil {
				return err
			}
			founders = phones
		}
		if err := founders[i%len(founders)].Send(ctx, convo, fmt.Sprintf("message %d", i)); err != nil {
			return err
		}
		if err := w.SyncAll(ctx, convo, founders...); err != nil {
			return err
		}
	}
	for _, p := range phones {
		if err := p.SendHead(ctx, convo); err != nil {
			return err
		}
	}
	if err := w.SyncAll(ctx, convo, phones...); err != nil {
		return err
	}
	for _, p := range phones {
		compared, err := p.CompareReceived(ctx, convo)
		if err != nil {
			return fmt.Errorf("%s: the log of %s: %w", p.Name, convo, err)
		}
		v, err := p.VerifierOf(convo)
		if err != nil {
			return err
		}
		if want := int64(verifiedMessages + 1 + len(phones)); v.Size() != want || compared != len(phones)-1 {
			w.Broken("%s has checked %d entries, want %d, and compared %d heads, want %d", p.Name, v.Size(), want, compared, len(phones)-1)
		}
	}
	if verified := w.Stats.Verified.Load(); verified < verifiedMessages {
		w.Broken("phones have compared parts of the log %d times, want at least %d", verified, verifiedMessages)
	}
	return nil
}
