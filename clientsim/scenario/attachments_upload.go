package scenario

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
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
	failed   bool // for good
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

// create announces an upload.
func (u *uploads) create(ctx context.Context, rng *rand.Rand, d *upload) {
	key := xrpc.NewKey()
	in := &mlsapi.CreateAttachmentInput{ConvoID: u.convo, Size: d.size, Sha256: d.sum, IdempotencyKey: &key}
	data, err := u.do(ctx, rng, d.by, mlsapi.NSIDCreateAttachment, nil, xrpc.Encode(in), asJSON)
	if err != nil {
		fail("create: %w", err)
	}
	out := must(xrpc.Decode[mlsapi.CreateAttachmentOutput](data))
	if out.PartSize != d.partSize || out.PartCount != int64(d.parts) {
		u.w.Broken("an attachment of %d bytes has %d parts of %d bytes", d.size, out.PartCount, out.PartSize)
	}
	d.id = out.AttachmentID
}

func (u *uploads) put(ctx context.Context, rng *rand.Rand, d *upload, n int) {
	q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}, "part": {fmt.Sprint(n)}}
	_, err := u.do(ctx, rng, d.by, mlsapi.NSIDPutAttachmentPart, q, d.part(n), asBytes)
	if err != nil {
		fail("part %d: %w", n, err)
	}
}

// complete completes an upload. It sends the parts again that the server asks for.
func (u *uploads) complete(ctx context.Context, rng *rand.Rand, d *upload) {
	in := xrpc.Encode(&mlsapi.CompleteAttachmentInput{ConvoID: u.convo, AttachmentID: d.id})
	for {
		_, err := u.do(ctx, rng, d.by, mlsapi.NSIDCompleteAttachment, nil, in, asJSON)
		var r *refused
		if !errors.As(err, &r) || r.Name != mlsapi.ErrAttachmentIncomplete {
			check(err)
			return
		}
		u.resumed.Add(1)
		u.putMissing(ctx, rng, d)
	}
}

// putMissing sends the parts that the server does not have.
func (u *uploads) putMissing(ctx context.Context, rng *rand.Rand, d *upload) {
	q := url.Values{"convoId": {u.convo}, "attachmentId": {d.id}}
	data, err := u.do(ctx, rng, d.by, mlsapi.NSIDGetAttachmentStatus, q, nil, nil)
	if err != nil {
		fail("status: %w", err)
	}
	out := must(xrpc.Decode[mlsapi.GetAttachmentStatusOutput](data))
	there := map[int64]bool{}
	for _, n := range out.Parts {
		there[n] = true
	}
	for n := 1; n <= d.parts; n++ {
		if !there[int64(n)] {
			u.put(ctx, rng, d, n)
		}
	}
}

// upload uploads a file: of one in four, a part of the parts is left out at first, as if the app had
// been killed, and the rest is sent when the status was asked for.
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
	data, err := u.do(ctx, rng, by, mlsapi.NSIDGetAttachment, url.Values{"convoId": {u.convo}, "attachmentId": {d.id}}, nil, nil)
	if err != nil {
		fail("get: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.sum {
		u.w.Broken("attachment %s: %d bytes with the hash %x, want %d with %s", d.id, len(data), sum, d.size, d.sum)
		return
	}
	u.whole.Add(1)
}
