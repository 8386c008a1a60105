package scenario

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The size of attachments.
const (
	uploaders     = 8
	bucketFaults  = 0.02 // chance that a request of the store fails
	killEvery     = 5 * time.Second
	mostUpload    = 50 << 20
	uploadTimeout = 3 * time.Minute
	heavyClients  = 50 // that upload mostUpload at once, with 1,000 uploads
)

// Attachments uploads encrypted files through two servers into a store that fails, while the servers
// are killed in turn. Answers are lost, and requests come twice. In the end each file that was
// completed is there once, and whole. Then a server dies while it checks a file, and the other takes
// over. Then many upload large files at once, and the server's memory stays as it was.
func Attachments(ctx context.Context, w *testbed.World) error {
	phones, convo, err := w.Convo(ctx, 3)
	if err != nil {
		return err
	}
	if err := phones[2].Leave(ctx, convo); err != nil { // now it is a former member
		return err
	}
	others, elsewhere, err := w.Convo(ctx, 2)
	if err != nil {
		return err
	}
	bucket, err := testbed.NewBucket(w.Seed)
	if err != nil {
		return err
	}
	defer func() {
		if err := bucket.Close(); err != nil {
			w.Note("the bucket: %v", err)
		}
	}()
	settings := bucket.Settings()
	maps.Copy(settings, map[string]string{
		"MLSD_QUOTA_ATTACHMENT_BYTES": "0", "MLSD_RATE_DID": "100000", "MLSD_RATE_DID_BURST": "100000", "MLSD_RATE_IP": "100000",
		"MLSD_RATE_IP_BURST": "100000", "MLSD_IDEMPOTENCY_LEASE": "completeAttachment=15s",
	})
	return w.WithClusterOf(ctx, testbed.ClusterOptions{Nodes: 2, Settings: settings}, func(f *testbed.Cluster) error {
		u := &uploads{w: w, f: f, convo: convo, phones: phones[:2], former: phones[2], bucket: bucket, http: &http.Client{Transport: testbed.FastTransport()}}
		defer u.http.CloseIdleConnections()
		for _, phase := range []func(context.Context) error{u.whileAllFails, u.takeover, func(ctx context.Context) error {
			return u.outsiders(ctx, others[0].Account, elsewhere)
		}, u.memory} {
			if err := phase(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// uploads is the state of the scenario.
type uploads struct {
	w      *testbed.World
	f      *testbed.Cluster
	convo  string
	phones []*client.Phone
	former *client.Phone
	bucket *testbed.Bucket
	http   *http.Client
	serial atomic.Uint64

	processing, resumed, retried, whole, failed, kills atomic.Int64
}

// upload is one file. Its bytes follow from a seed, so that nobody has to keep them.
type upload struct {
	seed     uint64
	size     int64
	by       *xrpc.Account
	id       string
	partSize int64
	parts    int
	sum      string
}

// part returns the bytes of a part.
func (d *upload) part(n int) []byte {
	length := min(d.partSize, d.size-int64(n-1)*d.partSize)
	body, seed := make([]byte, length), [32]byte{}
	copy(seed[:], fmt.Sprintf("%d part %d", d.seed, n))
	_, _ = rand.NewChaCha8(seed).Read(body) // never fails
	return body
}

// announced is the size that parts had when the hash was computed: the server's.
const announced = 1 << 20

func (u *uploads) newUpload(by *xrpc.Account, size int64) *upload {
	d := &upload{seed: u.w.Seed<<20 + u.serial.Add(1), size: size, by: by, partSize: announced}
	d.parts = int((size + announced - 1) / announced)
	sum := sha256.New()
	for n := 1; n <= d.parts; n++ {
		sum.Write(d.part(n))
	}
	d.sum = hex.EncodeToString(sum.Sum(nil))
	return d
}

// refused is an answer that is no success.
type refused struct {
	status              int
	Name                string `json:"error"`
	Message             string `json:"message"`
	ProcessingStartedAt string `json:"processingStartedAt"`
	retry               bool
}

func (r *refused) Error() string { return fmt.Sprintf("%d %s: %s", r.status, r.Name, r.Message) }

// once sends one request to a node. Its answer can be lost.
func (u *uploads) once(ctx context.Context, node int, who *xrpc.Account, nsid string, q url.Values, body []byte, header map[string]string) ([]byte, error) {
	token, err := who.Token(u.w.Net.Audience, syntax.NSID(nsid))
	if err != nil {
		return nil, err
	}
	verb := http.MethodGet
	var in io.Reader
	if body != nil {
		verb, in = http.MethodPost, bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, verb, u.f.Nodes[node].URL()+"/xrpc/"+nsid+"?"+q.Encode(), in)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := u.http.Do(req)
	if err != nil {
		return nil, &refused{Message: err.Error(), retry: true}
	}
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, &refused{Message: err.Error(), retry: true}
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return data, nil
	}
	r := &refused{status: resp.StatusCode}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	if r.Name == mlsapi.ErrRequestInProgress && r.ProcessingStartedAt != "" {
		u.processing.Add(1)
	}
	r.retry = r.status >= http.StatusInternalServerError || r.status == http.StatusTooManyRequests || r.Name == mlsapi.ErrRequestInProgress
	return nil, r
}

// do repeats a request, to the other node after each failure. One in eight is sent twice, and of one in
// eight the answer does not count, as if it were lost.
func (u *uploads) do(ctx context.Context, rng *rand.Rand, who *xrpc.Account, nsid string, q url.Values, body []byte, header map[string]string) ([]byte, error) {
	node, wait := rng.IntN(len(u.f.Nodes)), 20*time.Millisecond
	for {
		if rng.IntN(8) == 0 {
			go func(node int) { _, _ = u.once(ctx, node, who, nsid, q, body, header) }(rng.IntN(len(u.f.Nodes)))
		}
		data, err := u.once(ctx, node, who, nsid, q, body, header)
		var r *refused
		lost := err == nil && rng.IntN(8) == 0
		switch {
		case err == nil && !lost:
			return data, nil
		case err != nil && (!errors.As(err, &r) || !r.retry):
			return nil, err
		case ctx.Err() != nil:
			return nil, errors.Join(err, ctx.Err())
		}
		u.retried.Add(1)
		xrpc.Sleep(ctx, wait)
		wait, node = min(2*wait, time.Second), (node+1)%len(u.f.Nodes)
	}
}

var (
	asJSON  = map[string]string{"Content-Type": "application/json"}
	asBytes = map[string]string{"Content-Type": "application/octet-stream"}
)

// create announces an upload.
func (u *uploads) create(ctx context.Context, rng *rand.Rand, d *upload) error {
	key := xrpc.NewKey()
	in := &mlsapi.CreateAttachmentInput{ConvoID: u.convo, Size: d.size, Sha256: d.sum, IdempotencyKey: &key}
	data, err := u.do(ctx, rng, d.by, mlsapi.NSIDCreateAttachment, nil, in.AppendJSON(nil), asJSON)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	out, err := mlsapi.DecodeCreateAttachmentOutput(data)
	if err != nil {
		return err
	}
	if out.PartSize != d.partSize || out.PartCount != int64(d.parts) {
		u.w.Broken("an attachment of %d bytes has %d parts of %d bytes", d.size, out.PartCount, out.PartSize)
	}
	d.id = out.AttachmentID
	return nil
}

func (u *uploads) put(ctx context.Context, rng *rand.Rand, d *upload, n int) error {
	q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}, "part": {fmt.Sprint(n)}}
	_, err := u.do(ctx, rng, d.by, mlsapi.NSIDPutAttachmentPart, q, d.part(n), asBytes)
	if err != nil {
		return fmt.Errorf("part %d: %w", n, err)
	}
	return nil
}

// complete completes an upload. It sends the parts again that the server asks for.
func (u *uploads) complete(ctx context.Context, rng *rand.Rand, d *upload) error {
	in := (&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id}).AppendJSON(nil)
	for {
		_, err := u.do(ctx, rng, d.by, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
		var r *refused
		if !errors.As(err, &r) || r.Name != mlsapi.ErrAttachmentIncomplete {
			return err
		}
		u.resumed.Add(1)
		if err := u.putMissing(ctx, rng, d); err != nil {
			return err
		}
	}
}

// putMissing sends the parts that the server does not have.
func (u *uploads) putMissing(ctx context.Context, rng *rand.Rand, d *upload) error {
	q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}}
	data, err := u.do(ctx, rng, d.by, mlsapi.NSIDGetAttachmentStatus, q, nil, nil)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	out, err := mlsapi.DecodeGetAttachmentStatusOutput(data)
	if err != nil {
		return err
	}
	there := map[int64]bool{}
	for _, n := range out.Parts {
		there[n] = true
	}
	for n := 1; n <= d.parts; n++ {
		if !there[int64(n)] {
			if err := u.put(ctx, rng, d, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// upload uploads a file: of one in four, a part of the parts is left out at first, as if the app had
// been killed, and the rest is sent when the status was asked for.
func (u *uploads) upload(ctx context.Context, rng *rand.Rand, d *upload) error {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	if err := u.create(ctx, rng, d); err != nil {
		return err
	}
	killed := rng.IntN(4) == 0
	for n := 1; n <= d.parts; n++ {
		if killed && rng.IntN(2) == 0 {
			continue
		}
		if err := u.put(ctx, rng, d, n); err != nil {
			return err
		}
	}
	if killed {
		if err := u.putMissing(ctx, rng, d); err != nil {
			return err
		}
		u.resumed.Add(1)
	}
	return u.complete(ctx, rng, d)
}

// check reads a file as another member, and compares its hash.
func (u *uploads) check(ctx context.Context, rng *rand.Rand, d *upload, by *xrpc.Account) error {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	data, err := u.do(ctx, rng, by, mlsapi.NSIDGetAttachment, url.Values{"convoId": {u.convo}, "attachmentId": {d.id}}, nil, nil)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.sum {
		u.w.Broken("attachment %s: %d bytes with the hash %x, want %d with %s", d.id, len(data), sum, d.size, d.sum)
		return nil
	}
	u.whole.Add(1)
	return nil
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
	return 1 + rng.Int64N(mostUpload)
}

// whileAllFails is the first phase: uploads, while servers are killed and the store fails.
func (u *uploads) whileAllFails(ctx context.Context) error {
	all := make([]*upload, max(u.w.Uploads, 2))
	for i := range all {
		size := randomSize(u.w.RNG)
		if i < 2 {
			size = []int64{1, mostUpload}[i]
		}
		all[i] = u.newUpload(u.phones[i%len(u.phones)].Account, size)
	}
	u.bucket.Fail(bucketFaults)
	killing, stop := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() { killed <- u.kill(killing) }()
	begun := time.Now()
	var wg sync.WaitGroup
	next := make(chan int)
	for i := range uploaders {
		rng := rand.New(rand.NewPCG(u.w.Seed, uint64(i)))
		wg.Go(func() {
			for n := range next {
				d := all[n]
				if err := u.upload(ctx, rng, d); err != nil {
					u.failed.Add(1)
					u.w.Note("upload %d of %d bytes: %v", n, d.size, err)
					d.id = ""
				}
			}
		})
	}
	for n := range all {
		if n%50 == 0 {
			u.w.Progress(fmt.Sprintf("%d of %d uploads, %d kills, %d faults of the store", n, len(all), u.kills.Load(), u.bucket.Struck.Load()))
		}
		next <- n
	}
	close(next)
	wg.Wait()
	took := time.Since(begun)
	stop()
	if err := <-killed; err != nil {
		return err
	}
	u.bucket.Fail(0)
	for i, d := range all {
		if d.id == "" {
			continue
		}
		if err := u.check(ctx, u.w.RNG, d, u.phones[(i+1)%len(u.phones)].Account); err != nil {
			return err
		}
	}
	stored, err := u.f.Uploads(ctx, "")
	if err != nil {
		return err
	}
	var sum int64
	for _, d := range all {
		sum += d.size
	}
	u.w.Note("attachments: %d uploads (%d MiB) in %s, %d whole by hash, %d reported failed; %d kills, %d faults of the store, %d retries, %d resumed; "+
		"%d answers RequestInProgress with processingStartedAt; %d completed by a higher fence than 1 (the highest: %d)",
		len(all), sum>>20, took.Round(time.Second), u.whole.Load(), u.failed.Load(), u.kills.Load(), u.bucket.Struck.Load(), u.retried.Load(), u.resumed.Load(),
		u.processing.Load(), stored.TakenOver, stored.HighestFence)
	if stored.Twice != 0 || u.whole.Load()+u.failed.Load() != int64(len(all)) {
		u.w.Broken("%d contents are there twice; %d whole and %d failed of %d", stored.Twice, u.whole.Load(), u.failed.Load(), len(all))
	}
	if u.failed.Load() != 0 {
		u.w.Broken("%d uploads failed for good", u.failed.Load())
	}
	return nil
}

// kill kills the servers in turn, and starts each again.
func (u *uploads) kill(ctx context.Context) error {
	for i := 0; ; i++ {
		xrpc.Sleep(ctx, killEvery)
		if ctx.Err() != nil {
			return nil
		}
		node := u.f.Nodes[i%len(u.f.Nodes)]
		if err := node.Kill(); err != nil {
			return err
		}
		u.kills.Add(1)
		if err := node.Start(context.WithoutCancel(ctx), nil); err != nil {
			return err
		}
	}
}

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

// outsiders: a stranger, a member of another convo, a member that came later, a former member and a
// blocked one are refused.
func (u *uploads) outsiders(ctx context.Context, other *xrpc.Account, elsewhere string) error {
	alice, carol := u.phones[0], u.former
	d := u.newUpload(alice.Account, 1000)
	if err := u.upload(ctx, u.w.RNG, d); err != nil {
		return err
	}
	stranger, err := u.w.Account()
	if err != nil {
		return err
	}
	read := func(who *xrpc.Account, convo string) error {
		_, err := u.once(ctx, 0, who, mlsapi.NSIDGetAttachment, url.Values{"convoId": {convo}, "attachmentId": {d.id}}, nil, nil)
		return err
	}
	get := func(who *xrpc.Account, convo, want string) {
		err := read(who, convo)
		var r *refused
		if !errors.As(err, &r) || r.Name != want {
			u.w.Broken("an outsider's getAttachment: %v, want %s", err, want)
		}
	}
	get(stranger, u.convo, mlsapi.ErrConvoNotFound)
	get(other, u.convo, mlsapi.ErrConvoNotFound)
	get(other, elsewhere, mlsapi.ErrAttachmentNotFound)
	get(carol.Account, u.convo, mlsapi.ErrNotMember)
	if err := u.f.Nodes[0].Operate(ctx, "account/block", map[string]string{"did": u.phones[1].Account.DID.String(), "reason": "simulated"}); err != nil {
		return err
	}
	for range 30 { // a node learns of it within a second
		if read(u.phones[1].Account, u.convo) != nil {
			break
		}
		xrpc.Sleep(ctx, 100*time.Millisecond)
	}
	get(u.phones[1].Account, u.convo, "Blocked")
	if err := u.f.Nodes[0].Operate(ctx, "account/unblock", map[string]string{"did": u.phones[1].Account.DID.String(), "reason": "simulated"}); err != nil {
		return err
	}
	u.w.Note("attachments: refused are a stranger, a member of another convo in this one and there, a former member, and a blocked one")
	return nil
}

// memory is the last phase: many upload large files to one server at once.
func (u *uploads) memory(ctx context.Context) error {
	clients := min(heavyClients, max(u.w.Uploads*heavyClients/1000, 2))
	node := u.f.Nodes[1]
	before, err := node.Memory(ctx)
	if err != nil {
		return err
	}
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
			errs <- u.heavy(ctx, d)
		}()
	}
	for range clients {
		err = errors.Join(err, <-errs)
	}
	took := time.Since(begun)
	stop()
	<-measured
	if err != nil {
		return err
	}
	u.w.Note("attachments: %d clients uploaded 50 MiB each at once in %s; the server's resident memory: %d MiB before, %d MiB at most",
		clients, took.Round(time.Second), before.Resident>>20, most>>20)
	if grown := most - before.Resident; grown > 256<<20 {
		u.w.Broken("the memory of the server grew by %d MiB", grown>>20)
	}
	return nil
}

// heavy uploads a file to the second server, without faults.
func (u *uploads) heavy(ctx context.Context, d *upload) error {
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
	data, err := retry(mlsapi.NSIDCreateAttachment, nil, in.AppendJSON(nil), asJSON)
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeCreateAttachmentOutput(data)
	if err != nil {
		return err
	}
	d.id = out.AttachmentID
	for n := 1; n <= d.parts; n++ {
		q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}, "part": {fmt.Sprint(n)}}
		if _, err := retry(mlsapi.NSIDPutAttachmentPart, q, d.part(n), asBytes); err != nil {
			return fmt.Errorf("part %d: %w", n, err)
		}
	}
	_, err = retry(mlsapi.NSIDCompleteAttachment, nil, (&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id}).AppendJSON(nil), asJSON)
	return err
}
