package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// memory is the last phase: many upload large files to one server at once.
func (u *uploads) memory(ctx context.Context) {
	clients := min(heavyClients, max(u.w.Uploads*heavyClients/1000, 2))
	node := u.f.Nodes[1]
	before := must(node.Memory(ctx))
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
	begun, errs := time.Now(), make(chan error, clients)
	for i := range clients {
		go func() {
			d := u.newUpload(u.phones[i%2].Account, mostUpload)
			errs <- attempt(func() { u.heavy(ctx, d) })
		}()
	}
	var failed error
	for range clients {
		failed = errors.Join(failed, <-errs)
	}
	took := time.Since(begun)
	stop()
	<-measured
	check(failed)
	u.w.Note("attachments: %d clients uploaded 50 MiB each at once in %s; the server's resident memory: %d MiB before, %d MiB at most",
		clients, took.Round(time.Second), before.Resident>>20, most>>20)
	if grown := most - before.Resident; grown > 256<<20 {
		u.w.Broken("the memory of the server grew by %d MiB", grown>>20)
	}
}

// heavy uploads a file to the second server, without faults.
func (u *uploads) heavy(ctx context.Context, d *upload) {
	retry := func(nsid string, q url.Values, body []byte, header map[string]string) ([]byte, error) {
		for {
			data, err := u.once(ctx, 1, d.by, nsid, q, body, header)
			var r *refused
			if err == nil || !errors.As(err, &r) || !r.retry || ctx.Err() != nil {
				return data, err
			}
			xrpc.Sleep(ctx, 200*time.Millisecond)
		}
	}
	in := &mlsapi.CreateAttachmentInput{ConvoID: u.convo, Size: d.size, Sha256: d.sum}
	data := must(retry(mlsapi.NSIDCreateAttachment, nil, xrpc.Encode(in), asJSON))
	out := must(xrpc.Decode[mlsapi.CreateAttachmentOutput](data))
	d.id = out.AttachmentID
	for n := 1; n <= d.parts; n++ {
		q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}, "part": {fmt.Sprint(n)}}
		if _, err := retry(mlsapi.NSIDPutAttachmentPart, q, d.part(n), asBytes); err != nil {
			fail("part %d: %w", n, err)
		}
	}
	must(retry(mlsapi.NSIDCompleteAttachment, nil, xrpc.Encode(&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id}), asJSON))
}
