package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/features/attachments/filestore"
	"mlsd/features/attachments/s3store"
	"mlsd/features/attachments/storetest"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/people/quota"
)

// newAttachments returns the attachments of a node. Their store is the world's; without one it is a
// directory, or the S3 service that check.sh of package s3store has started.
func (w *world) newAttachments(writes *idem.Store, log *slog.Logger) *attachments.Service {
	w.t.Helper()
	if w.noStore {
		return nil
	}
	if w.store == nil {
		w.store = newStore(w.t)
	}
	if w.lease == 0 {
		w.lease = time.Hour
	}
	s := attachments.New(attachments.Config{
		DB: w.db, Store: w.store, Writes: writes, ServiceDID: service, MaxSize: 5 << 20, Life: idem.DefaultLife,
		Lease: w.lease, Log: log, Faults: w.faults,
	})
	w.sweeper = attachments.NewSweeper(w.db, s, log)
	return s
}

func newStore(t testing.TB) attachments.Store {
	t.Helper()
	if endpoint := os.Getenv("MLSD_TEST_S3_ENDPOINT"); endpoint != "" {
		s, err := s3store.New(s3store.Config{
			Endpoint: endpoint, Bucket: os.Getenv("MLSD_TEST_S3_BUCKET"), Key: os.Getenv("MLSD_TEST_S3_ACCESS_KEY"),
			Secret: os.Getenv("MLSD_TEST_S3_SECRET_KEY"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, err := filestore.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inMemory gives the world a store in memory, whose calls can be made to fail.
func inMemory(w *world) { w.store = storetest.NewMemory() }

func (w *world) memory() *storetest.Memory { return w.store.(*storetest.Memory) }

// file is a file on its way into a convo.
type file struct {
	by    *user
	convo *convo
	id    string
	uri   string
	body  []byte
}

func newFile(t testing.TB, size int) []byte {
	t.Helper()
	body := make([]byte, size)
	if _, err := rand.Read(body); err != nil {
		t.Fatal(err)
	}
	return body
}

func announcement(c *convo, body []byte) *mlsapi.CreateAttachmentInput {
	sum := sha256.Sum256(body)
	return &mlsapi.CreateAttachmentInput{ConvoID: c.id, Size: int64(len(body)), Sha256: hex.EncodeToString(sum[:]),
		IdempotencyKey: newKey()}
}

// announce creates an attachment of size random bytes.
func (u *user) announce(c *convo, size int) *file {
	u.w.t.Helper()
	f := &file{by: u, convo: c, body: newFile(u.w.t, size)}
	out := read[mlsapi.CreateAttachmentOutput](u.w.t, u.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).ok())
	f.id, f.uri = out.AttachmentID, out.URI
	return f
}

// attach creates an attachment and uploads it.
func (u *user) attach(c *convo, size int) *file {
	u.w.t.Helper()
	f := u.announce(c, size)
	f.upload()
	f.complete(u).ok()
	return f
}

func (f *file) parts() int { return (len(f.body) + attachments.PartSize - 1) / attachments.PartSize }

// part is the bytes of a part.
func (f *file) part(n int) []byte {
	return f.body[(n-1)*attachments.PartSize : min(n*attachments.PartSize, len(f.body))]
}

func (u *user) putBytes(f *file, part string, body []byte) answer {
	u.w.t.Helper()
	q := query("convoId", f.convo.id, "attachmentId", f.id, "part", part)
	return u.w.do(http.MethodPost, mlsapi.NSIDPutAttachmentPart, q, body, u.authorization(mlsapi.NSIDPutAttachmentPart),
		"Content-Type", "application/octet-stream")
}

func (f *file) put(n int) answer {
	f.by.w.t.Helper()
	return f.by.putBytes(f, itoa(int64(n)), f.part(n))
}

func (f *file) upload() {
	f.by.w.t.Helper()
	for n := 1; n <= f.parts(); n++ {
		f.put(n).ok()
	}
}

func (f *file) complete(by *user) answer {
	by.w.t.Helper()
	return by.post(mlsapi.NSIDCompleteAttachment, &mlsapi.CompleteAttachmentInput{ConvoID: f.convo.id, AttachmentID: f.id})
}

func (f *file) get(by *user, headers ...string) answer {
	by.w.t.Helper()
	return by.w.do(http.MethodGet, mlsapi.NSIDGetAttachment, query("convoId", f.convo.id, "attachmentId", f.id), nil,
		by.authorization(mlsapi.NSIDGetAttachment), headers...)
}

func (f *file) status(by *user) mlsapi.GetAttachmentStatusOutput {
	by.w.t.Helper()
	return read[mlsapi.GetAttachmentStatusOutput](by.w.t,
		by.get(mlsapi.NSIDGetAttachmentStatus, "convoId", f.convo.id, "attachmentId", f.id).ok())
}

// readable fails the test unless the person gets the bytes, whole.
func (f *file) readable(by *user) {
	by.w.t.Helper()
	if got := f.get(by).ok(); !bytes.Equal(got, f.body) {
		by.w.t.Fatalf("got %d bytes that are not the %d that were uploaded", len(got), len(f.body))
	}
}

// naming is a message whose embedUri is the attachment.
func (f *file) naming(by *user) *mlsapi.SendMessageInput {
	in := by.message(f.convo, "a file "+*newKey())
	in.EmbedURI = &f.uri
	return in
}

func (f *file) remove(by *user, key *string) answer {
	by.w.t.Helper()
	return by.post(mlsapi.NSIDDeleteAttachment,
		&mlsapi.DeleteAttachmentInput{ConvoID: f.convo.id, AttachmentID: f.id, IdempotencyKey: key})
}

// From the announcement to the deletion.
func TestAttachment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	for _, size := range []int{1, attachments.PartSize - 1, attachments.PartSize, attachments.PartSize + 1,
		2*attachments.PartSize + 100_000} {
		alice.attach(c, size).readable(bob)
	}

	f := alice.announce(c, 2*attachments.PartSize+5)
	in := announcement(c, f.body)
	first := alice.post(mlsapi.NSIDCreateAttachment, in)
	alice.post(mlsapi.NSIDCreateAttachment, in).replays(first)
	bobs := read[mlsapi.CreateAttachmentOutput](t, bob.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).ok())
	want := mlsapi.CreateAttachmentOutput{AttachmentID: f.id, URI: "mlsd:attachment/" + f.id, PartSize: 1 << 20,
		PartCount: 3, State: "uploading"}
	if diff := cmp.Diff(want, bobs); diff != "" {
		t.Errorf("the same content announced again (-want +got):\n%s", diff)
	}

	f.get(bob).fails(http.StatusConflict, mlsapi.ErrAttachmentIncomplete)
	alice.post(mlsapi.NSIDSendMessage, f.naming(alice)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	f.put(3).ok()
	f.put(1).ok()
	first = f.put(1)
	if repeated := f.put(1); !bytes.Equal(first.ok(), repeated.ok()) {
		t.Errorf("a repeated part is answered %s, at first %s", repeated.body, first.body)
	}
	if message := f.complete(bob).fails(http.StatusConflict, mlsapi.ErrAttachmentIncomplete); !strings.HasSuffix(message,
		"missing parts: 2") {
		t.Errorf("the message is %q", message)
	}
	if diff := cmp.Diff([]int64{1, 3}, f.status(bob).Parts); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	f.put(2).ok()
	done := f.complete(bob) // anybody who has announced it
	if again := f.complete(alice); !bytes.Equal(done.ok(), again.ok()) {
		t.Errorf("completed again it is %s, at first %s", again.body, done.body)
	}
	f.put(1).ok() // a copy that was under way
	f.readable(bob)

	message := f.naming(alice)
	sent := alice.post(mlsapi.NSIDSendMessage, message)
	sent.ok()
	f.remove(bob, nil).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	key := newKey()
	gone := f.remove(alice, key)
	gone.ok()
	f.remove(alice, key).replays(gone)
	f.remove(alice, nil).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	f.get(bob).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	f.complete(alice).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	alice.post(mlsapi.NSIDSendMessage, f.naming(alice)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	// The retry of a message that was stored gets its first answer, whatever has become of the file.
	alice.post(mlsapi.NSIDSendMessage, message).replays(sent)
}

// Ranges, by header and by parameter.
func TestAttachmentRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	f := alice.attach(alice.create(), attachments.PartSize+1000)
	size := len(f.body)
	for header, want := range map[string][2]int{
		"bytes=0-0": {0, 1}, "bytes=10-19": {10, 20}, "bytes=1048570-1048580": {1048570, 1048581},
		"bytes=-7":                       {size - 7, size},
		fmt.Sprintf("bytes=%d-", size-1): {size - 1, size}, "bytes=5-99999999": {5, size},
		"bytes=0-9223372036854775807": {0, size}, "bytes=-99999999": {0, size},
	} {
		a := f.get(alice, "Range", header)
		if a.status != http.StatusPartialContent || !bytes.Equal(a.body, f.body[want[0]:want[1]]) {
			t.Errorf("%s: status %d, %d bytes; want those from %d to %d", header, a.status, len(a.body), want[0], want[1])
		}
		if got, want := a.header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/%d", want[0], want[1]-1, size); got != want {
			t.Errorf("%s: Content-Range is %q, want %q", header, got, want)
		}
	}
	for _, header := range []string{"bytes=5-1", "bytes=a-b", "lines=1-2", "bytes=1-2,5-6", "bytes="} {
		if a := f.get(alice, "Range", header); a.status != http.StatusOK || len(a.body) != size {
			t.Errorf("%s: status %d, %d bytes; want all", header, a.status, len(a.body))
		}
	}
	a := f.get(alice, "Range", fmt.Sprintf("bytes=%d-", size))
	if a.fails(http.StatusRequestedRangeNotSatisfiable,
		"InvalidRequest"); a.header.Get("Content-Range") != fmt.Sprintf("bytes */%d", size) {
		t.Errorf("a range behind the end: %v", a.header)
	}
	part := alice.get(mlsapi.NSIDGetAttachment, "convoId", f.convo.id, "attachmentId", f.id, "offset", "1048000", "length",
		"1000").ok()
	if !bytes.Equal(part, f.body[1048000:1049000]) {
		t.Errorf("offset and length: %d bytes", len(part))
	}
}

// Who reads a message that was sent at the same place in the log reads the attachment, and nobody
// else.
func TestAttachmentReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, outsider := w.user(), w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	f := alice.attach(c, 1000)
	early := f.naming(alice)
	sent := alice.post(mlsapi.NSIDSendMessage, early)
	sent.ok()
	alice.remove(c, carol)
	alice.add(c, dave)
	elsewhere := outsider.create()

	f.readable(alice)
	f.readable(bob)
	for who, u := range map[string]*user{"an outsider": outsider, "a former member": carol, "who joined later": dave} {
		status, name := http.StatusNotFound, mlsapi.ErrAttachmentNotFound
		switch u {
		case outsider:
			name = mlsapi.ErrConvoNotFound
		case carol:
			status, name = http.StatusForbidden, mlsapi.ErrNotMember
		}
		t.Log(who)
		f.get(u).fails(status, name)
		f.complete(u).fails(status, name)
		u.putBytes(f, "1", f.body).fails(status, name)
		u.get(mlsapi.NSIDGetAttachmentStatus, "convoId", c.id, "attachmentId", f.id).fails(status, name)
		f.remove(u, nil).fails(status, name)
	}
	outsider.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	carol.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	// To know the hash gives nobody the content.
	dave.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).fails(http.StatusBadRequest, "InvalidRequest")
	dave.post(mlsapi.NSIDSendMessage, f.naming(dave)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	// In another convo the id is that of no attachment.
	other := &file{by: outsider, convo: elsewhere, id: f.id, uri: f.uri, body: f.body}
	other.get(outsider).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	outsider.post(mlsapi.NSIDSendMessage, other.naming(outsider)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)

	// The repetition of the early message opens it to nobody.
	alice.post(mlsapi.NSIDSendMessage, early).replays(sent)
	f.get(dave).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	// Nor does a message that is refused.
	refused := f.naming(alice)
	refused.Epoch = c.epoch - 1
	refused.Ciphertext = mlstest.Message(c.group, c.epoch-1, "refused")
	alice.post(mlsapi.NSIDSendMessage, refused).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	f.get(dave).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	// A message that names it again is for who reads that message.
	f.convo = c
	alice.post(mlsapi.NSIDSendMessage, f.naming(alice)).ok()
	f.readable(dave)
}

// A content that is not what was announced fails for good. The same content announced anew is
// another attachment.
func TestAttachmentOtherContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	f := alice.announce(c, 500)
	alice.putBytes(f, "1", newFile(t, 500)).ok()
	for range 2 {
		f.complete(alice).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	}
	f.put(1).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	f.get(alice).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	if s := f.status(alice); s.State != "failed" || s.Failure == nil {
		t.Errorf("its status is %+v", s)
	}
	again := read[mlsapi.CreateAttachmentOutput](t, alice.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).ok())
	if again.AttachmentID == f.id {
		t.Fatal("the failed attachment was announced again")
	}
	f.id = again.AttachmentID
	f.put(1).ok()
	f.complete(alice).ok()
	f.readable(alice)
}

// What is not well formed is refused, before it costs anything.
func TestAttachmentRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	f := alice.announce(c, attachments.PartSize+10)
	for name, in := range map[string]*mlsapi.CreateAttachmentInput{
		"capitals": {ConvoID: c.id, Size: 1, Sha256: strings.Repeat("AB", 32)},
		"no hex":   {ConvoID: c.id, Size: 1, Sha256: strings.Repeat("zz", 32)},
		"short":    {ConvoID: c.id, Size: 1, Sha256: "ab"},
		"empty":    {ConvoID: c.id, Size: 0, Sha256: strings.Repeat("ab", 32)},
		"size":     {ConvoID: c.id, Size: f.bodySize() + 1, Sha256: announcement(c, f.body).Sha256},
	} {
		t.Log(name)
		alice.post(mlsapi.NSIDCreateAttachment, in).fails(http.StatusBadRequest, "InvalidRequest")
	}
	alice.post(mlsapi.NSIDCreateAttachment,
		&mlsapi.CreateAttachmentInput{ConvoID: c.id, Size: 5<<20 + 1, Sha256: strings.Repeat("ab", 32)}).
		fails(http.StatusRequestEntityTooLarge, mlsapi.ErrAttachmentTooLarge)
	for name, p := range map[string]struct {
		part string
		body []byte
	}{
		"too short": {"1", f.part(1)[1:]}, "too long": {"2", append(bytes.Clone(f.part(2)), 'x')}, "empty": {"1", nil},
		"no such part": {"3", f.part(2)}, "part 0": {"0", f.part(2)}, "a huge number": {"9007199254740991", f.part(2)},
		"no number": {"x", nil},
	} {
		t.Log(name)
		alice.putBytes(f, p.part, p.body).fails(http.StatusBadRequest, "InvalidRequest")
	}
	alice.putBytes(f, "1", newFile(t, attachments.PartSize+1)).fails(http.StatusRequestEntityTooLarge, "PayloadTooLarge")
	for _, id := range []string{"", "x", strings.ToUpper(f.id), f.id[1:]} {
		odd := *f
		odd.id = id
		odd.complete(alice).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	}
	if n := w.count(`SELECT count(*) FROM attachment_parts`); n != 0 {
		t.Errorf("%d parts were stored", n)
	}
}

func (f *file) bodySize() int64 { return int64(len(f.body)) }

// Without a store every method says what the operator has to set, and a message cannot name an
// attachment.
func TestNoAttachments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.noStore = true })
	alice := w.user()
	c := alice.create()
	f := &file{by: alice, convo: c, id: "0192f3a4-5b6c-7d8e-9f01-23456789abcd",
		uri: "mlsd:attachment/0192f3a4-5b6c-7d8e-9f01-23456789abcd", body: []byte("x")}
	for name, a := range map[string]answer{
		"create": alice.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)), "put": f.put(1),
		"complete": f.complete(alice), "get": f.get(alice),
		"status": alice.get(mlsapi.NSIDGetAttachmentStatus, "convoId", c.id, "attachmentId", f.id),
		"delete": f.remove(alice, nil),
	} {
		if message := a.fails(http.StatusNotImplemented, "MethodNotImplemented"); !strings.Contains(message,
			"MLSD_ATTACHMENTS") {
			t.Errorf("%s: %s", name, message)
		}
	}
	alice.post(mlsapi.NSIDSendMessage, f.naming(alice)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
}

// The quota counts what is announced, once for a content.
func TestAttachmentQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.limits = quota.Limits{"attachment-bytes-per-day": 3 << 20} })
	alice := w.user()
	c := alice.create()
	f := alice.announce(c, 2<<20)
	for range 3 {
		alice.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)).ok()
	}
	alice.post(mlsapi.NSIDCreateAttachment, announcement(c, newFile(t, 2<<20))).fails(http.StatusTooManyRequests,
		"QuotaExceeded")
	alice.announce(c, 1<<20)
	alice.post(mlsapi.NSIDCreateAttachment, announcement(c, newFile(t, 1))).fails(http.StatusTooManyRequests,
		"QuotaExceeded")
}

// The quota of uploads counts each part that the server reads, also if nothing comes of it.
func TestUploadQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, func(w *world) {
		w.limits = quota.Limits{"uploaded-bytes-per-day": 300, quota.AddressShare: 1}
		w.now = newClock(noon).now
	})
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	whole := alice.attach(c, 100)
	whole.put(1).ok() // is not read
	f := alice.announce(c, 100)
	alice.putBytes(f, "1", f.body[1:]).fails(http.StatusBadRequest, "InvalidRequest")
	alice.putBytes(f, "1", newFile(t, 100)).ok()
	want := "quota uploaded-bytes-per-day is used up: 300 of 300; resets at " + midnight
	if got := f.put(1).fails(http.StatusTooManyRequests, "QuotaExceeded"); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if got := len(w.memory().Names()); got != 2 {
		t.Errorf("there are %d objects", got)
	}
	f.by = bob
	want = "quota address-" + strings.TrimPrefix(want, "quota ")
	if got := f.put(1).fails(http.StatusTooManyRequests, "QuotaExceeded"); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// The store fails at each of its calls in each way. Whatever it is, the client's retry ends with
// the whole file, and the sweeper leaves no object that is not a part.
func TestAttachmentStoreFails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"put", "open", "delete", "list"} {
		for _, fault := range []storetest.Fault{storetest.Refused, storetest.Half, storetest.Lost} {
			if fault == storetest.Lost && (call == "open" || call == "list") {
				continue // nothing is done whose answer could be lost
			}
			t.Run(call+" "+string(fault), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, inMemory, faulty)
				alice := w.user()
				f := alice.announce(alice.create(), 2*attachments.PartSize+77)
				// Two failures, with a call between them that succeeds.
				w.memory().Fail(call, "", fault, "", fault)
				for n := 1; n <= f.parts(); n++ {
					f.untilOK(func() answer { return f.put(n) })
				}
				f.untilOK(func() answer { return f.complete(alice) })
				f.untilOK(func() answer { return f.get(alice) })
				f.readable(alice)
				for range 3 {
					f.by.announceDeleted(f.convo)
				}
				w.sweepLater(4)
				if left := w.memory().Planned(call); left != 0 {
					t.Errorf("%d of the planned failures have not happened", left)
				}
				if got := len(w.memory().Names()); got != f.parts() {
					t.Errorf("there are %d objects, and %d parts: %q", got, f.parts(), w.memory().Names())
				}
				f.readable(alice)
			})
		}
	}
}

// announceDeleted leaves an object for the sweeper.
func (u *user) announceDeleted(c *convo) {
	u.w.t.Helper()
	f := u.announce(c, 10)
	f.untilOK(func() answer { return f.put(1) })
	f.remove(u, nil).ok()
}

// untilOK repeats a call while it is answered 503.
func (f *file) untilOK(call func() answer) {
	f.by.w.t.Helper()
	for range 5 {
		a := call()
		if a.status == http.StatusOK {
			return
		}
		a.fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	}
	f.by.w.t.Fatal("five attempts failed")
}

// sweepLater runs rounds of the sweeper as they would run two days later. A round can fail: the
// next does its work.
func (w *world) sweepLater(rounds int) {
	w.t.Helper()
	pgtest.Age(w.t, w.db, "attachments", 48*time.Hour, "touched_at")
	w.memory().Age(48 * time.Hour)
	for range rounds {
		pgtest.Sweep(w.t, attachments.Sweeps(w.db, w.retention)...)
		if err := w.sweeper.RunOnce(context.Background()); err != nil && !errors.Is(err, storetest.ErrBroken) {
			w.t.Fatal(err)
		}
	}
}

// The node or its connection to the database fails at each step. The retry ends with the whole
// file, and what was checked before is not read again.
func TestAttachmentStepsFail(t *testing.T) {
	t.Parallel()
	for _, at := range []struct{ point, nsid string }{
		{failpoint.BeforeCommit, mlsapi.NSIDCreateAttachment}, {failpoint.AfterCommit, mlsapi.NSIDCreateAttachment},
		{failpoint.BeforeCommit, attachments.NSIDPut},
		{failpoint.AfterReserve, mlsapi.NSIDCompleteAttachment}, {failpoint.AfterWork, mlsapi.NSIDCompleteAttachment},
		{failpoint.BeforeCommit, mlsapi.NSIDCompleteAttachment}, {failpoint.AfterCommit, mlsapi.NSIDCompleteAttachment},
		{failpoint.BeforeCommit, attachments.NSIDCheck}, {failpoint.AfterCommit, attachments.NSIDCheck},
	} {
		t.Run(at.point+" "+at.nsid, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, inMemory, faulty)
			alice := w.user()
			c := alice.create()
			f := &file{by: alice, convo: c, body: newFile(t, 2*attachments.PartSize+77)}
			failpointtest.Arm(t, w.faults, at.point, at.nsid, failpoint.Error)
			in := announcement(c, f.body)
			attempt := func(call func() answer) answer {
				a := call()
				for range 4 {
					if a.status == http.StatusOK {
						return a
					}
					// As if the node had been killed there: its lease is over some time later.
					pgtest.Age(t, w.db, "idempotency_keys", 2*time.Hour, "lease_expires_at")
					a = call()
				}
				a.ok()
				return a
			}
			out := read[mlsapi.CreateAttachmentOutput](t,
				attempt(func() answer { return alice.post(mlsapi.NSIDCreateAttachment, in) }).body)
			f.id, f.uri = out.AttachmentID, out.URI
			for n := 1; n <= f.parts(); n++ {
				attempt(func() answer { return f.put(n) })
			}
			attempt(func() answer { return f.complete(alice) })
			f.readable(alice)
			w.sweepLater(1)
			if got := len(w.memory().Names()); got != f.parts() {
				t.Errorf("there are %d objects, and %d parts", got, f.parts())
			}
			if n := w.count(`SELECT count(*) FROM attachments`); n != 1 {
				t.Errorf("there are %d attachments", n)
			}
		})
	}
}

// A node is killed while it checks. Another takes over with a higher fence, and goes on where the
// first one was. The first one, which was not dead after all, changes nothing.
func TestAttachmentTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	f := alice.announce(c, 3*attachments.PartSize+1)
	f.upload()
	other := w.boot()
	failpointtest.Arm(t, w.faults, failpoint.AfterCommit, attachments.NSIDCheck, failpoint.Pause)
	reached := w.faults.Reached(failpoint.AfterCommit, attachments.NSIDCheck)
	first := make(chan answer, 1)
	go func() { first <- f.complete(alice) }()
	<-reached // one part is checked, and recorded

	running := f.complete(bob.on(other))
	message := running.fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
	var more struct{ ProcessingStartedAt string }
	if err := json.Unmarshal(running.body, &more); err != nil || more.ProcessingStartedAt == "" ||
		!strings.Contains(message, "processing_started_at=") {
		t.Errorf("the answer is %s", running.body)
	}
	if running.header.Get("Retry-After") == "" {
		t.Error("there is no Retry-After")
	}
	if s := f.status(bob); s.State != "checking" || s.ProcessingStartedAt == nil || s.CheckedParts == nil ||
		*s.CheckedParts != 1 {
		t.Errorf("its status is %+v", s)
	}
	f.put(1).fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
	alice.post(mlsapi.NSIDSendMessage, f.naming(alice)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)

	pgtest.Age(t, w.db, "idempotency_keys", 2*time.Hour, "lease_expires_at")
	opened := w.memory().Calls("open")
	f.complete(bob.on(other)).ok()
	if n := w.memory().Calls("open") - opened; n != 3 {
		t.Errorf("the second holder has read %d parts, want the 3 that were not checked", n)
	}
	if fence := w.count(`SELECT fence FROM attachments`); fence != 2 {
		t.Errorf("the fence is %d, want 2", fence)
	}
	w.faults.Resume(failpoint.AfterCommit, attachments.NSIDCheck)
	(<-first).fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
	if fence := w.count(`SELECT fence FROM attachments WHERE state = 'complete'`); fence != 2 {
		t.Errorf("the first holder has changed the attachment: fence %d", fence)
	}
	f.complete(alice).ok()
	f.readable(bob)
}

// Many complete at once: one does the work.
func TestAttachmentCompletedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice, bob := w.user(), w.user()
	f := alice.announce(alice.create(bob), attachments.PartSize+1)
	f.upload()
	var done sync.Map
	answers := together(12, func(i int) answer {
		by := alice
		if i%2 == 1 {
			by = bob
		}
		for {
			a := f.complete(by)
			if a.status == http.StatusOK {
				done.Store(i, true)
				return a
			}
			a.fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
		}
	})
	for _, a := range answers {
		if !bytes.Equal(a.body, answers[0].body) {
			t.Errorf("one gets %s, another %s", a.body, answers[0].body)
		}
	}
	if n := w.memory().Calls("open"); n != 2 {
		t.Errorf("%d parts were read, want 2", n)
	}
}

// What the store has lost or changed is found when the attachment is completed: the client sends
// that part again.
func TestAttachmentBrokenPart(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string][]byte{"lost": nil, "changed": bytes.Repeat([]byte("x"), attachments.PartSize),
		"cut": []byte("x")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, inMemory)
			alice := w.user()
			f := alice.announce(alice.create(), 2*attachments.PartSize+9)
			f.upload()
			var object string
			if err := w.db.QueryRow(t.Context(),
				`SELECT object FROM attachment_parts WHERE part = 2`).Scan(&object); err != nil {
				t.Fatal(err)
			}
			w.memory().Change(object, broken)
			if message := f.complete(alice).fails(http.StatusConflict,
				mlsapi.ErrAttachmentIncomplete); !strings.HasSuffix(message, "missing parts: 2") {
				t.Errorf("the message is %q", message)
			}
			f.put(2).ok()
			f.complete(alice).ok()
			f.readable(alice)
		})
	}
}

// Unfinished uploads, failed and deleted attachments, and objects that no row names are swept. What
// is complete stays.
func TestAttachmentSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	c := alice.create()
	kept := alice.attach(c, 100)
	unfinished := alice.announce(c, attachments.PartSize+1)
	unfinished.put(1).ok()
	deleted := alice.attach(c, 200)
	deleted.remove(alice, nil).ok()
	prefix, _, _ := strings.Cut(w.memory().Names()[0], "/")
	w.memory().Add(prefix+"/0192f3a4-5b6c-7d8e-9f01-23456789abcd/1-orphan", time.Now().Add(-25*time.Hour))
	w.memory().Add(prefix+"/0192f3a4-5b6c-7d8e-9f01-23456789abcd/1-young", time.Now())
	w.memory().Add("another-database/1/1-x", time.Now().Add(-25*time.Hour))
	before := len(w.memory().Names())
	if err := w.sweeper.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(w.memory().Names()); got != before-2 {
		t.Errorf("%d of %d objects are left, want all but the deleted and the orphan: %q", got, before, w.memory().Names())
	}
	unfinished.put(2).ok()
	w.sweepLater(3)
	unfinished.put(2).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	if got := w.memory().Names(); len(got) != 2 {
		t.Errorf("left are %q, want the complete attachment's and the other database's", got)
	}
	kept.readable(alice)
}

// Attachments are kept as long as messages. One that a message names again is kept as long as that.
func TestAttachmentRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, func(w *world) { w.retention = 48 * time.Hour })
	alice := w.user()
	c := alice.create()
	old, renamed := alice.attach(c, 100), alice.attach(c, 200)
	pgtest.Age(t, w.db, "attachments", 47*time.Hour, "kept_from")
	alice.post(mlsapi.NSIDSendMessage, renamed.naming(alice)).ok()
	sweep := func() {
		t.Helper()
		pgtest.Sweep(t, attachments.Sweeps(w.db, w.retention)...)
		if err := w.sweeper.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	old.readable(alice)
	pgtest.Age(t, w.db, "attachments", 3*time.Hour, "kept_from")
	sweep()
	old.get(alice).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	renamed.readable(alice)
	if n := len(w.memory().Names()); n != 1 {
		t.Errorf("%d objects are left, want 1", n)
	}
}

// deleteConvo deletes a convo, as the operator does.
func (w *world) deleteConvo(c *convo) {
	w.t.Helper()
	remover, id := convos.NewRemover(w.db, nil, attachments.Purge), uuid.MustParse(c.id)
	err := pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(w.t.Context(), `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
			return err
		}
		_, err := remover.Remove(w.t.Context(), tx, id)
		return err
	})
	if err == nil {
		_, err = remover.Purge(w.t.Context(), id)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// A deleted convo takes its attachments with it.
func TestAttachmentsOfADeletedConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	c := alice.create()
	alice.attach(c, 100)
	w.deleteConvo(c)
	if err := w.sweeper.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.memory().Names(); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}

// An erasure deletes what the person has announced, for everybody. The export names it before.
func TestAttachmentErasure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	hers, his := alice.attach(c, attachments.PartSize+1), bob.attach(c, 200)
	exported := string(alice.get(mlsapi.NSIDExportMyData, "limit", "500").ok())
	for _, want := range []string{`"attachments"`, `"attachment_parts"`, hers.id} {
		if !strings.Contains(exported, want) {
			t.Errorf("the export lacks %s", want)
		}
	}
	if strings.Contains(exported, his.id) {
		t.Error("the export has another's attachment")
	}
	person := tombstone.Person{DID: alice.did(), Salt: tombstone.NewSalt()}
	err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		n, err := attachments.Erase(t.Context(), tx, person, 100)
		if n != 1 {
			t.Errorf("%d attachments were erased", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	hers.get(bob).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	if n := w.count(`SELECT count(*) FROM attachments WHERE sender_did = $1`, alice.did()); n != 0 {
		t.Error("a row names the erased person")
	}
	if err := w.sweeper.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.memory().Names(); len(left) != 1 {
		t.Errorf("left are %q, want the other's", left)
	}
	his.readable(bob)
}

// A client over HTTP that is cut off in the middle of a part leaves nothing, and its retry
// succeeds. A body without Content-Length is taken too.
func TestAttachmentHalfABody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	f := alice.announce(alice.create(), 300_000)
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	send := func(body []byte, length int64) (*http.Response, error) {
		q := query("convoId", f.convo.id, "attachmentId", f.id, "part", "1")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			server.URL+"/xrpc/"+mlsapi.NSIDPutAttachmentPart+"?"+q.Encode(),
			struct{ *bytes.Reader }{bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = length
		r.Header.Set("Authorization", alice.authorization(mlsapi.NSIDPutAttachmentPart))
		r.Header.Set("Content-Type", "application/octet-stream")
		return http.DefaultClient.Do(r)
	}
	if answer, err := send(f.body[:200_000], int64(len(f.body))); err == nil {
		answer.Body.Close()
		t.Error("half a body was answered")
	}
	answer, err := send(f.body, -1)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("status %d", answer.StatusCode)
	}
	f.complete(alice).ok()
	f.readable(alice)
}
