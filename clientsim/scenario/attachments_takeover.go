package scenario

import (
	"context"
	"errors"
	"fmt"
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
	in := (&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id}).AppendJSON(nil)
	first := make(chan error, 1)
	go func() {
		_, err := u.once(ctx, 0, alice, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
		first <- err
	}()
	seen := u.processing.Load()
	err := xrpc.Until(ctx, time.Minute, func() (bool, error) {
		_, err := u.once(ctx, 1, bob, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
		var r *refused
		if err == nil || !errors.As(err, &r) {
			return false, fmt.Errorf("the second server completes what the first one checks: %w", err)
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
		_, err := u.once(ctx, 1, bob, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
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
