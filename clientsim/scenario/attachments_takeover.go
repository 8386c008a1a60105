package scenario

import (
	"context"
	"errors"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// takeover kills a server while it checks a file. The other one takes over when the lease is over, and
// goes on where the first one was.
func (u *uploads) takeover(ctx context.Context) error {
	alice, bob := u.phones[0].Account, u.phones[1].Account
	d := u.newUpload(alice, 5<<20)
	if err := u.create(ctx, u.w.RNG, d); err != nil {
		return err
	}
	if err := u.putMissing(ctx, u.w.RNG, d); err != nil {
		return err
	}
	goOn := u.bucket.Stall()
	defer goOn()
	in := xrpc.Encode(&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id})
	complete := func(node int, by *xrpc.Account) error {
		_, err := u.once(ctx, node, by, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
		return err
	}
	first := make(chan error, 1)
	go func() { first <- complete(0, alice) }()
	seen := u.processing.Load()
	err := xrpc.Until(ctx, time.Minute, func() (bool, error) {
		err := complete(1, bob)
		if err == nil {
			return false, errors.New("the second server has completed what the first one checks")
		}
		if !errors.As(err, new(*refused)) {
			return false, err
		}
		return u.processing.Load() > seen, nil
	})
	if err != nil {
		return err
	}
	if err := u.f.Nodes[0].Kill(); err != nil {
		return err
	}
	if err := <-first; err == nil {
		u.w.Broken("the killed server has answered")
	}
	goOn()
	begun := time.Now()
	err = xrpc.Until(ctx, time.Minute, func() (bool, error) {
		err := complete(1, bob)
		var r *refused
		if errors.As(err, &r) && r.retry {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	took := time.Since(begun)
	if err := u.f.Nodes[0].Start(ctx, nil); err != nil {
		return err
	}
	stored, err := u.f.Uploads(ctx, d.id)
	if err != nil {
		return err
	}
	u.w.Note("attachments: a server was killed while it checked; the other took over after %s with fence %d", took.Round(time.Second), stored.Fence)
	if stored.Fence < 2 {
		u.w.Broken("a takeover has the fence %d, want more than 1", stored.Fence)
	}
	return u.check(ctx, u.w.RNG, d, bob)
}
