package scenario

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How attachments plays.
const (
	uploaders     = 8
	bucketFaults  = 0.02 // chance that a request of the store fails
	requestFaults = 0.15 // chance that a request meets a fault of the network
	killEvery     = 5 * time.Second
	maxUpload     = 50 << 20
	uploadTimeout = 3 * time.Minute
	heavyClients  = 50 // clients that upload maxUpload at once, if 1,000 uploads are configured
)

// Attachments uploads encrypted files through two servers into a store that fails, while the
// servers are killed in turn. Answers are lost, and requests come twice. In the end, the store has
// each completed file once and whole. Then many clients upload large files at once, and the
// server's memory must not grow.
func Attachments(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, 2))
	bucket := Must(testbed.NewBucket(w.Seed))
	defer func() {
		if err := bucket.Close(); err != nil {
			w.Note("the bucket: %v", err)
		}
	}()
	settings := bucket.Settings()
	maps.Copy(settings, map[string]string{
		"MLSD_QUOTA_ATTACHMENT_BYTES": "0",
		"MLSD_RATE_DID":               "100000/100000", "MLSD_RATE_IP": "100000/100000",
		"MLSD_IDEMPOTENCY_LEASE": "completeAttachment=15s",
	})
	faults := testbed.NewFaultyTransport(testbed.FastTransport())
	w.WithCluster(ctx, testbed.ClusterOptions{Nodes: 2, Settings: settings, Transport: faults}, func(f *testbed.Cluster) {
		u := &uploads{w: w, f: f, convo: convo, phones: phones, bucket: bucket, faults: faults}
		u.whileAllFails(ctx)
		u.memory(ctx)
	})
}

// uploads is the state of the scenario.
type uploads struct {
	w      *testbed.World
	f      *testbed.Cluster
	convo  string
	phones []*client.Phone
	bucket *testbed.Bucket
	faults *testbed.FaultyTransport
	serial atomic.Uint64

	resumed, retried, whole, failed, kills atomic.Int64
}

// randomSize is mostly small: half below 64 KiB, and one in a hundred up to 50 MiB.
func randomSize(rng *rand.Rand) int64 {
	switch n := rng.IntN(100); {
	case n < 60:
		return 1 + rng.Int64N(64<<10)
	case n < 90:
		return 1 + rng.Int64N(1<<20)
	case n < 99:
		return 1 + rng.Int64N(4<<20)
	}
	return 1 + rng.Int64N(maxUpload)
}

// whileAllFails is the first phase: it uploads files while servers are killed and the store fails.
func (u *uploads) whileAllFails(ctx context.Context) {
	all := make([]*upload, max(u.w.Uploads, 2))
	for i := range all {
		size := randomSize(u.w.RNG)
		if i < 2 {
			size = []int64{1, maxUpload}[i]
		}
		all[i] = u.newUpload(u.phones[i%len(u.phones)].Account, size)
	}
	u.bucket.Fail(bucketFaults)
	u.faults.Use(testbed.NewRandomFaults(u.w.Seed, requestFaults))
	killing, stop := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() { killed <- Attempt(func() { u.kill(killing) }) }()
	begun := time.Now()
	u.uploadAll(ctx, all)
	took := time.Since(begun)
	stop()
	Check(<-killed)
	u.bucket.Fail(0)
	u.faults.Use(nil)
	for i, d := range all {
		if d.failed {
			continue
		}
		u.check(ctx, u.w.RNG, d, u.phones[(i+1)%len(u.phones)].Account)
	}
	u.sum(ctx, all, took)
}

// uploadAll uploads the files, a few at a time.
func (u *uploads) uploadAll(ctx context.Context, all []*upload) {
	Each(uploaders, len(all), func(n int) {
		if n%50 == 0 {
			u.w.Progress(fmt.Sprintf("%d of %d uploads, %d kills, %d faults of the store", n, len(all), u.kills.Load(),
				u.bucket.Struck.Load()))
		}
		d, rng := all[n], rand.New(rand.NewPCG(u.w.Seed, uint64(n)))
		if err := Attempt(func() { u.upload(ctx, rng, d) }); err != nil {
			u.failed.Add(1)
			u.w.Note("upload %d of %d bytes: %v", n, d.size, err)
			d.failed = true
		}
	})
}

// sum notes the results of the first phase. The store must have each upload once and whole.
func (u *uploads) sum(ctx context.Context, all []*upload, took time.Duration) {
	stored := Must(u.f.Uploads(ctx))
	var size int64
	for _, d := range all {
		size += d.size
	}
	u.w.Note("attachments: %d uploads (%d MiB) in %s, %d whole by hash, %d reported failed; %d kills, %d faults of the "+
		"store, %d retries, %d resumed; %d completed by a second server",
		len(all), size>>20, took.Round(time.Second), u.whole.Load(), u.failed.Load(), u.kills.Load(), u.bucket.Struck.Load(),
		u.retried.Load(), u.resumed.Load(), stored.TakenOver)
	if stored.Twice != 0 || u.whole.Load()+u.failed.Load() != int64(len(all)) {
		u.w.Broken("%d contents are there twice; %d whole and %d failed of %d", stored.Twice, u.whole.Load(), u.failed.Load(),
			len(all))
	}
	if u.failed.Load() != 0 {
		u.w.Broken("%d uploads failed for good", u.failed.Load())
	}
}

// kill kills the servers in turn, and starts each again.
func (u *uploads) kill(ctx context.Context) {
	for i := 0; ; i++ {
		xrpc.Sleep(ctx, killEvery)
		if ctx.Err() != nil {
			return
		}
		node := u.f.Nodes[i%len(u.f.Nodes)]
		Check(node.Kill())
		u.kills.Add(1)
		Check(node.Start(context.WithoutCancel(ctx), nil))
	}
}

// memory is the last phase: many clients upload large files to one server at once.
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
