package scenario

import (
	"context"
	"fmt"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/errs"
)

// verifiedMessages is how many messages VerifiedLog sends.
const verifiedMessages = 24

// VerifiedLog lets members check the log against the server's signed heads. The members send each
// other heads inside encrypted messages and compare them. One member joins later.
func VerifiedLog(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 3))
	founders, late := phones[:2], phones[2]
	convo := Must(founders[0].Create(ctx, founders[1].Account.DID))
	Check(founders[1].Join(ctx, convo))
	for i := range verifiedMessages {
		if i == verifiedMessages/2 {
			Check(founders[0].Add(ctx, convo, late.Account.DID))
			Check(late.Join(ctx, convo))
			founders = phones
		}
		Check(founders[i%len(founders)].Send(ctx, convo, fmt.Sprintf("message %d", i)))
		Check(w.SyncAll(ctx, convo, founders...))
	}
	for _, p := range phones {
		Check(p.SendHead(ctx, convo))
	}
	Check(w.SyncAll(ctx, convo, phones...))
	for _, p := range phones {
		compared, err := p.CompareReceived(ctx, convo)
		Check(errs.Wrap(err, "%s: the log of %s", p.Name, convo))
		v := Must(p.VerifierOf(convo))
		if want := int64(verifiedMessages + 1 + len(phones)); v.Size() != want || compared != len(phones)-1 {
			w.Broken("%s has checked %d entries, want %d, and compared %d heads, want %d", p.Name, v.Size(), want, compared,
				len(phones)-1)
		}
	}
	if verified := w.Stats.Verified.Load(); verified < verifiedMessages {
		w.Broken("phones have compared parts of the log %d times, want at least %d", verified, verifiedMessages)
	}
}
