package scenario

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// upload is one file. Its bytes follow from a seed, so that nobody has to keep them.
type upload struct {
	seed     uint64
	size     int64
	by       *xrpc.Account
	id       string
	partSize int64
	parts    int
	sum      string
	failed   bool // the upload has failed for good
}

// part returns the bytes of a part.
func (d *upload) part(n int) []byte {
	length := min(d.partSize, d.size-int64(n-1)*d.partSize)
	body, seed := make([]byte, length), [32]byte{}
	copy(seed[:], fmt.Sprintf("%d part %d", d.seed, n))
	_, _ = rand.NewChaCha8(seed).Read(body) // never fails
	return body
}

// announced is the part size with which the hash was computed. It is the server's part size.
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

// doubledRequests: one request in so many is sent twice, the second time to any node.
const doubledRequests = 8

// do repeats a call. After each failure it uses the other node.
func (u *uploads) do(ctx context.Context, rng *rand.Rand, who *xrpc.Account, call xrpc.Call) (xrpc.Answer, error) {
	node := rng.IntN(len(u.f.Nodes))
	return xrpc.Retry(ctx, uploadTimeout, xrpc.RetryAfter, func(ctx context.Context, again bool) (xrpc.Answer, error) {
		if again {
			u.retried.Add(1)
			node = (node + 1) % len(u.f.Nodes)
		}
		if rng.IntN(doubledRequests) == 0 {
			go func(node int) { _, _ = u.once(ctx, node, who, call) }(rng.IntN(len(u.f.Nodes)))
		}
		return u.once(ctx, node, who, call)
	})
}

// once sends a call once, to a node.
func (u *uploads) once(ctx context.Context, node int, who *xrpc.Account, call xrpc.Call) (xrpc.Answer, error) {
	return u.f.Clients[node].Once(ctx, who, call)
}

// about makes a query for an upload.
func (u *uploads) about(method string, d *upload) xrpc.Call {
	query := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}}
	return xrpc.Call{Method: syntax.NSID(method), Convo: u.convo, Query: query}
}

func (u *uploads) createCall(d *upload) xrpc.Call {
	key := xrpc.NewKey()
	in := &mlsapi.CreateAttachmentInput{ConvoID: u.convo, Size: d.size, Sha256: d.sum, IdempotencyKey: &key}
	return xrpc.Procedure(mlsapi.NSIDCreateAttachment, u.convo, key, in)
}

func (u *uploads) putCall(d *upload, n int) xrpc.Call {
	call := u.about(mlsapi.NSIDPutAttachmentPart, d)
	call.Query.Set("part", fmt.Sprint(n))
	call.Body, call.Type = d.part(n), "application/octet-stream"
	return call
}

func (u *uploads) completeCall(d *upload) xrpc.Call {
	in := &mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id}
	return xrpc.Procedure(mlsapi.NSIDCompleteAttachment, u.convo, "", in)
}

// create announces an upload.
func (u *uploads) create(ctx context.Context, rng *rand.Rand, d *upload) {
	answer, err := u.do(ctx, rng, d.by, u.createCall(d))
	Check(errs.Wrap(err, "create"))
	out := Must(xrpc.Decode[mlsapi.CreateAttachmentOutput](answer.Body))
	if out.PartSize != d.partSize || out.PartCount != int64(d.parts) {
		u.w.Broken("an attachment of %d bytes has %d parts of %d bytes", d.size, out.PartCount, out.PartSize)
	}
	d.id = out.AttachmentID
}

func (u *uploads) put(ctx context.Context, rng *rand.Rand, d *upload, n int) {
	if _, err := u.do(ctx, rng, d.by, u.putCall(d, n)); err != nil {
		Fail("part %d: %w", n, err)
	}
}

// complete completes an upload. If the server asks for parts, complete sends these parts again.
func (u *uploads) complete(ctx context.Context, rng *rand.Rand, d *upload) {
	for {
		_, err := u.do(ctx, rng, d.by, u.completeCall(d))
		if xrpc.ErrorName(err) != mlsapi.ErrAttachmentIncomplete {
			Check(err)
			return
		}
		u.resumed.Add(1)
		u.putMissing(ctx, rng, d)
	}
}

// putMissing sends the parts that the server does not have.
func (u *uploads) putMissing(ctx context.Context, rng *rand.Rand, d *upload) {
	answer, err := u.do(ctx, rng, d.by, u.about(mlsapi.NSIDGetAttachmentStatus, d))
	Check(errs.Wrap(err, "status"))
	out := Must(xrpc.Decode[mlsapi.GetAttachmentStatusOutput](answer.Body))
	for n := 1; n <= d.parts; n++ {
		if !slices.Contains(out.Parts, int64(n)) {
			u.put(ctx, rng, d, n)
		}
	}
}

// upload uploads a file. For one file in four, it first leaves some parts out, as if the app had
// been killed. Then it asks for the status, and sends the missing parts.
func (u *uploads) upload(ctx context.Context, rng *rand.Rand, d *upload) {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	u.create(ctx, rng, d)
	killed := rng.IntN(4) == 0
	for n := 1; n <= d.parts; n++ {
		if killed && rng.IntN(2) == 0 {
			continue
		}
		u.put(ctx, rng, d, n)
	}
	if killed {
		u.putMissing(ctx, rng, d)
		u.resumed.Add(1)
	}
	u.complete(ctx, rng, d)
}

// check reads a file as another member, and compares its hash.
func (u *uploads) check(ctx context.Context, rng *rand.Rand, d *upload, by *xrpc.Account) {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	answer, err := u.do(ctx, rng, by, u.about(mlsapi.NSIDGetAttachment, d))
	Check(errs.Wrap(err, "get"))
	data := answer.Body
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.sum {
		u.w.Broken("attachment %s: %d bytes with the hash %x, want %d with %s", d.id, len(data), sum, d.size, d.sum)
		return
	}
	u.whole.Add(1)
}
