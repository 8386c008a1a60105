package scenario

import (
	"context"
	"errors"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// takeover kills a server while it checks a file. The other one takes over when the lease is over, and
// goes on where the first one was.
func (u *uploads) takeover(ctx context.Context) {
	alice, bob := u.phones[0].Account, u.phones[1].Account
	d := u.newUpload(alice, 5<<20)
	u.create(ctx, u.w.RNG, d)
	u.putMissing(ctx, u.w.RNG, d)
	goOn := u.bucket.Stall()
	defer goOn()
	complete := func(node int, by *xrpc.Account) error {
		_, err := u.once(ctx, node, by, u.completeCall(d))
		return err
	}
	first := make(chan error, 1)
	go func() { first <- complete(0, alice) }()
	Check(xrpc.Until(ctx, time.Minute, func() (bool, error) { return u.bucket.Stalled.Load() > 0, nil }))
	seen := u.processing.Load()
	Check(xrpc.Until(ctx, time.Minute, func() (bool, error) {
		err := complete(1, bob)
		if err == nil {
			return false, errors.New("the second server has completed what the first one checks")
		}
		if !errors.As(err, new(*xrpc.CallError)) {
			return false, err
		}
		return u.processing.Load() > seen, nil
	}))
	Check(u.f.Nodes[0].Kill())
	if err := <-first; err == nil {
		u.w.Broken("the killed server has answered")
	}
	goOn()
	begun := time.Now()
	Check(xrpc.Until(ctx, time.Minute, func() (bool, error) {
		err := complete(1, bob)
		if _, again := xrpc.RetryAfter(err, 0); again {
			return false, nil
		}
		return err == nil, err
	}))
	took := time.Since(begun)
	Check(u.f.Nodes[0].Start(ctx, nil))
	stored := Must(u.f.Uploads(ctx, d.id))
	u.w.Note("attachments: a server was killed while it checked; the other took over after %s with fence %d",
		took.Round(time.Second), stored.Fence)
	if stored.Fence < 2 {
		u.w.Broken("a takeover has the fence %d, want more than 1", stored.Fence)
	}
	u.check(ctx, u.w.RNG, d, bob)
}
