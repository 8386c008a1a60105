package scenario

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// memory is the last phase: many upload large files to one server at once.
func (u *uploads) memory(ctx context.Context) {
	clients := min(heavyClients, max(u.w.Uploads*heavyClients/1000, 2))
	node := u.f.Nodes[1]
	before := Must(node.Memory(ctx))
	pid, most := node.PID(), int64(0)
	measuring, stop := context.WithCancel(ctx)
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		for measuring.Err() == nil {
			if now, err := testbed.FromStatus(pid, "VmRSS:"); err == nil {
				most = max(most, now)
			}
			xrpc.Sleep(measuring, 100*time.Millisecond)
		}
	}()
	begun := time.Now()
	failed := Attempt(func() {
		Each(clients, clients, func(i int) { u.heavy(ctx, u.newUpload(u.phones[i%2].Account, maxUpload)) })
	})
	took := time.Since(begun)
	stop()
	<-measured
	Check(failed)
	u.w.Note("attachments: %d clients uploaded 50 MiB each at once in %s; the server's resident memory: %d MiB before, "+
		"%d MiB at most",
		clients, took.Round(time.Second), before.Resident>>20, most>>20)
	if grown := most - before.Resident; grown > 256<<20 {
		u.w.Broken("the memory of the server grew by %d MiB", grown>>20)
	}
}

// heavy uploads a file to the second server, without faults.
func (u *uploads) heavy(ctx context.Context, d *upload) {
	retry := func(call xrpc.Call) (xrpc.Answer, error) {
		return xrpc.Retry(ctx, uploadTimeout, xrpc.RetryAfter, func(ctx context.Context, _ bool) (xrpc.Answer, error) {
			return u.once(ctx, 1, d.by, call)
		})
	}
	answer := Must(retry(u.createCall(d)))
	d.id = Must(xrpc.Decode[mlsapi.CreateAttachmentOutput](answer.Body)).AttachmentID
	for n := 1; n <= d.parts; n++ {
		if _, err := retry(u.putCall(d, n)); err != nil {
			Fail("part %d: %w", n, err)
		}
	}
	Must(retry(u.completeCall(d)))
}
