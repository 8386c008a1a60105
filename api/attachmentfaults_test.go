package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/attachments"
	"mlsd/features/attachments/s3store"
	"mlsd/features/attachments/storetest"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
)

// putWatcher tells when a Put has returned.
type putWatcher struct {
	attachments.Store
	returned chan struct{}
}

func (s putWatcher) Put(ctx context.Context, name string, body io.Reader, size int64) error {
	err := s.Store.Put(ctx, name, body, size)
	s.returned <- struct{}{}
	return err
}

// earlyS3 answers a PUT when its headers have come, and takes everything else for done.
func earlyS3(t *testing.T, status int) attachments.Store {
	t.Helper()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(status)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(service.Close)
	s, err := s3store.New(s3store.Config{Endpoint: service.URL, Bucket: "bucket", Key: "k", Secret: "s"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// partRequest is the request that puts a part.
func (f *file) partRequest(server *httptest.Server, body io.Reader, length int) *http.Request {
	t := f.by.w.t
	t.Helper()
	q := query("convoId", f.convo.id, "attachmentId", f.id, "part", "1")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		server.URL+"/xrpc/"+mlsapi.NSIDPutAttachmentPart+"?"+q.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = int64(length)
	r.Header.Set("Authorization", f.by.authorization(mlsapi.NSIDPutAttachmentPart))
	r.Header.Set("Content-Type", "application/octet-stream")
	return r
}

// An S3 service that answers before it has read the part does not end the node, which still reads the
// client's body in the HTTP client at that time: the client gets 503, on a connection that it can use
// again.
func TestAttachmentStoreAnswersEarly(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusForbidden, http.StatusInternalServerError,
		http.StatusServiceUnavailable} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			returned := make(chan struct{}, 10)
			w := newWorld(t, faulty, func(w *world) { w.store = putWatcher{earlyS3(t, status), returned} })
			alice := w.user()
			f := alice.announce(alice.create(), attachments.PartSize)
			server := httptest.NewServer(w.server)
			t.Cleanup(server.Close)
			for range 3 {
				body, drip := io.Pipe()
				dripped := make(chan error, 1)
				go func() {
					_, err := drip.Write(f.body[:100_000])
					<-returned
					if err == nil {
						_, err = drip.Write(f.body[100_000:])
					}
					dripped <- errors.Join(err, drip.Close())
				}()
				answer, err := http.DefaultClient.Do(f.partRequest(server, body, len(f.body)))
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(answer.Body)
				if err = errors.Join(err, answer.Body.Close()); err != nil {
					t.Fatal(err)
				}
				if answer.StatusCode != http.StatusServiceUnavailable || answer.Close {
					t.Errorf("status %d, the connection ends: %t: %s", answer.StatusCode, answer.Close, text)
				}
				if err := <-dripped; err != nil {
					t.Errorf("the body was not taken: %v", err)
				}
			}
		})
	}
}

// A part that is there already is answered without reading its body. The connection can be used again.
func TestAttachmentPartTwiceKeepsTheConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	f := alice.attach(alice.create(), attachments.PartSize)
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	answer, err := http.DefaultClient.Do(f.partRequest(server, struct{ io.Reader }{bytes.NewReader(f.body)}, len(f.body)))
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Close {
		t.Errorf("status %d, the connection ends: %t", answer.StatusCode, answer.Close)
	}
}

// A client hangs up once its part is in the store. The part is recorded nevertheless: else anybody
// could fill the store with objects that no quota counts.
func TestPartOfAClientThatHangsUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice := w.user()
	f := alice.announce(alice.create(), 100)
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, attachments.NSIDPut, failpoint.Pause)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := *f
	gone.by = alice.on(w.server)
	gone.by.w.ctx = ctx
	answered := make(chan answer, 1)
	go func() { answered <- gone.put(1) }()
	<-w.faults.Reached(failpoint.BeforeCommit, attachments.NSIDPut)
	hangUp()
	w.faults.Resume(failpoint.BeforeCommit, attachments.NSIDPut)
	<-answered
	if parts, objects := w.count(`SELECT count(*) FROM attachment_parts`), len(w.memory().Names()); parts != 1 ||
		objects != 1 {
		t.Errorf("there are %d parts and %d objects, want one", parts, objects)
	}
	f.complete(alice).ok()
	f.readable(alice)
}

// The record of a part fails. Its object is deleted, unless it turns out that the part was recorded.
func TestPartThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]int{failpoint.BeforeCommit: 0, failpoint.AfterCommit: 1} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, inMemory, faulty)
			alice := w.user()
			f := alice.announce(alice.create(), 100)
			failpointtest.Arm(t, w.faults, point, attachments.NSIDPut, failpoint.Error)
			if a := f.put(1); a.status == http.StatusOK {
				t.Error("the failure was not answered")
			}
			if parts, objects := w.count(`SELECT count(*) FROM attachment_parts`), len(w.memory().Names()); parts != want ||
				objects != want {
				t.Errorf("there are %d parts and %d objects, want %d", parts, objects, want)
			}
			f.put(1).ok()
			if objects := len(w.memory().Names()); objects != 1 {
				t.Errorf("sent again: there are %d objects", objects)
			}
			f.complete(alice).ok()
			f.readable(alice)
		})
	}
}

// A download that waits leaves the memory of other methods alone.
func TestDownloadsHaveTheirOwnMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	f := alice.attach(alice.create(), attachments.PartSize+1)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	opened := 0
	w.memory().Stop = func(call, _ string) {
		if call != "open" {
			return
		}
		if opened++; opened == 2 { // the second part
			once.Do(func() { close(reached) })
			<-goOn
		}
	}
	got := make(chan answer, 1)
	go func() { got <- f.get(alice) }()
	<-reached
	if !w.server.MemoryIsFree() {
		t.Error("a download holds memory of small requests")
	}
	close(goOn)
	if !bytes.Equal((<-got).ok(), f.body) {
		t.Error("other bytes than those that were uploaded")
	}
}

// A download costs a unit for each MiB that was sent.
func TestDownloadIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-6, Burst: 1000} })
	alice := w.user()
	f := alice.attach(alice.create(), 3*attachments.PartSize)
	left := func(a answer) string {
		t.Helper()
		a.ok()
		return a.header.Get("Ratelimit-Remaining")
	}
	before := left(alice.get(mlsapi.NSIDGetBlocks))
	f.readable(alice)
	f.get(alice, "Range", "bytes=0-2097151")
	after := left(alice.get(mlsapi.NSIDGetBlocks))
	if got, want := number(t, before)-number(t, after), 3+ /* itself */ 1+2+1+ /* getBlocks */ 1; got != want {
		t.Errorf("the downloads have cost %d units, want %d", got, want)
	}
}

func number(t *testing.T, text string) (n int) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The store fails before the first byte of a download: the client can read the error.
func TestDownloadFailsReadably(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice := w.user()
	f := alice.attach(alice.create(), attachments.PartSize)
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	w.memory().Fail("open", storetest.Refused)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		server.URL+"/xrpc/"+mlsapi.NSIDGetAttachment+"?"+query("convoId", f.convo.id, "attachmentId", f.id).Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", alice.authorization(mlsapi.NSIDGetAttachment))
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(got.Body)
	if err = errors.Join(err, got.Body.Close()); err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	if got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "ServiceUnavailable") ||
		got.Header.Get("Etag") != "" {
		t.Errorf("status %d, headers %v: %s", got.StatusCode, got.Header, text)
	}
}

// The store loses a part of a complete attachment. Its reader learns which, and who has the file sends
// it again; another content is refused.
func TestLostPartIsSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice, bob := w.user(), w.user()
	f := alice.attach(alice.create(bob), 2*attachments.PartSize+9)
	var object string
	if err := w.db.QueryRow(t.Context(), `SELECT object FROM attachment_parts WHERE part = 2`).Scan(&object); err != nil {
		t.Fatal(err)
	}
	w.memory().Change(object, nil)
	message := f.get(bob, "Range", "bytes=1048576-").fails(http.StatusConflict, mlsapi.ErrAttachmentIncomplete)
	if !strings.HasSuffix(message, "missing parts: 2") {
		t.Errorf("the message is %q", message)
	}
	alice.putBytes(f, "2", newFile(t, attachments.PartSize)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	f.get(bob, "Range", "bytes=1048576-").fails(http.StatusConflict, mlsapi.ErrAttachmentIncomplete)
	for n := 1; n <= f.parts(); n++ {
		f.put(n).ok()
	}
	f.readable(bob)
	if got := len(w.memory().Names()); got != f.parts() {
		t.Errorf("there are %d objects, and %d parts", got, f.parts())
	}
}

// An object that cannot be deleted keeps no other one, nor the orphans.
func TestSweepGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice := w.user()
	c := alice.create()
	for range 2 {
		alice.attach(c, 100).remove(alice, nil).ok()
	}
	prefix, _, _ := strings.Cut(w.memory().Names()[0], "/")
	w.memory().Add(prefix+"/0192f3a4-5b6c-7d8e-9f01-23456789abcd/1-orphan", time.Now().Add(-25*time.Hour))
	w.memory().Fail("delete", storetest.Refused)
	if err := w.sweeper.RunOnce(t.Context()); !errors.Is(err, storetest.ErrBroken) {
		t.Errorf("the round says %v", err)
	}
	if left := w.memory().Names(); len(left) != 1 || strings.Contains(left[0], "orphan") {
		t.Errorf("left are %q, want the one that could not be deleted", left)
	}
	if err := w.sweeper.RunOnce(t.Context()); err != nil || len(w.memory().Names()) != 0 {
		t.Errorf("the next round: %v; left are %q", err, w.memory().Names())
	}
}

// A deletion asks for a round of the sweeper. Its repetitions do not.
func TestReplayedDeletionWakesNobody(t *testing.T) {
	t.Parallel()
	wakes := 0
	w := newWorld(t, inMemory, func(w *world) { w.deleted = func() { wakes++ } })
	alice := w.user()
	f := alice.attach(alice.create(), 100)
	key := newKey()
	first := f.remove(alice, key)
	first.ok()
	f.remove(alice, key).replays(first)
	f.remove(alice, nil).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	if wakes != 1 {
		t.Errorf("the sweeper was woken %d times", wakes)
	}
}

// A deleted attachment says since when it is deleted, however that was done: the operator sees what the
// store has not deleted for a day. What was deleted before keeps its time.
func TestDeletionsAreTimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty, func(w *world) { w.retention = 48 * time.Hour })
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	person := tombstone.Person{DID: alice.did(), Salt: tombstone.NewSalt()}
	erase := func() {
		err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
			_, err := attachments.Erase(t.Context(), tx, person, 100)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sweep := func() {
		w.memory().Fail("delete", storetest.Refused, storetest.Refused)
		pgtest.Sweep(t, attachments.Sweeps(w.db, w.retention)...)
		if err := w.sweeper.RunOnce(t.Context()); !errors.Is(err, storetest.ErrBroken) {
			t.Fatalf("the round says %v", err)
		}
	}
	var f *file
	bobs := func() { f = bob.attach(c, 200) }
	for name, d := range map[string]struct{ begin, act func() }{
		"by its author":    {bobs, func() { f.remove(bob, nil).ok() }},
		"unfinished":       {func() { bob.announce(c, 2*attachments.PartSize).put(1).ok() }, sweep},
		"retention":        {bobs, sweep},
		"the convo's end":  {bobs, func() { w.deleteConvo(c) }},
		"the author's end": {func() { alice.attach(c, 300) }, erase},
		"already deleted":  {func() { alice.attach(c, 300).remove(alice, nil).ok() }, erase},
	} {
		c = alice.create(bob)
		d.begin()
		pgtest.Age(t, w.db, "attachments", 50*time.Hour, "touched_at", "kept_from")
		d.act()
		want := 0
		if name == "already deleted" {
			want = 1
		}
		if n := w.count(`SELECT count(*) FROM attachments WHERE state = 'deleted'`); n != 1 {
			t.Fatalf("%s: %d attachments are deleted", name, n)
		}
		if n := w.count(`SELECT count(*) FROM attachments WHERE touched_at < now() - interval '1 hour'`); n != want {
			t.Errorf("%s: the deletion has no time of its own", name)
		}
		w.exec(`DELETE FROM attachments`)
	}
}

// Nobody waits for the answer to a message that names an attachment: its sender has hung up, or the
// node is killed after the COMMIT. The attachment is named nevertheless, in the message's own
// transaction: members who read the message read the attachment, and it is kept as long.
func TestMessageNamesItsAttachmentWithoutItsSender(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty, func(w *world) { w.retention = 48 * time.Hour })
	alice, dave := w.user(), w.user()
	c := alice.create()
	f := alice.attach(c, 1000)
	alice.send(c, "of the attachment's place")
	alice.add(c, dave)
	f.get(dave).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	pgtest.Age(t, w.db, "attachments", 50*time.Hour, "kept_from")

	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDSendMessage, failpoint.Pause)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := alice.on(w.server)
	gone.w.ctx = ctx
	answered := make(chan answer, 1)
	message := f.naming(alice)
	go func() { answered <- gone.post(mlsapi.NSIDSendMessage, message) }()
	<-w.faults.Reached(failpoint.BeforeCommit, mlsapi.NSIDSendMessage)
	hangUp()
	(<-answered).unavailable()
	w.faults.Resume(failpoint.BeforeCommit, mlsapi.NSIDSendMessage)
	alice.send(c, "behind it") // a convo's messages are written in order

	f.readable(dave)
	if err := w.sweeper.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.readable(dave)
}

// A transaction that is not committed names nothing.
func TestMessageThatIsNotStoredNamesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice, dave := w.user(), w.user()
	c := alice.create()
	f := alice.attach(c, 1000)
	alice.send(c, "of the attachment's place")
	alice.add(c, dave)
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDSendMessage, failpoint.Error)
	message := f.naming(alice)
	alice.post(mlsapi.NSIDSendMessage, message).unavailable()
	f.get(dave).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
	alice.post(mlsapi.NSIDSendMessage, message).ok()
	f.readable(dave)
}

// A node without a store sends messages that name attachments of another node.
func TestMessageNamesAnAttachmentWithoutAStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice := w.user()
	f := alice.attach(alice.create(), 100)
	w.noStore = true
	bare := w.boot()
	alice.on(bare).post(mlsapi.NSIDSendMessage, f.naming(alice)).ok()
	unknown := &file{convo: f.convo, uri: "mlsd:attachment/0192f3a4-5b6c-7d8e-9f01-23456789abcd"}
	alice.on(bare).post(mlsapi.NSIDSendMessage, unknown.naming(alice)).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
}

// The export does not tell a person the words of the operator's store.
func TestExportHidesTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory, faulty)
	alice := w.user()
	f := alice.announce(alice.create(), 100)
	f.upload()
	w.memory().Fail("open", storetest.Refused)
	f.complete(alice).fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	if n := w.count(`SELECT count(*) FROM idempotency_keys WHERE last_error LIKE '%answers 500%'`); n != 1 {
		t.Fatalf("%d records have the store's words", n)
	}
	if strings.Contains(string(alice.get(mlsapi.NSIDExportMyData, "limit", "500").ok()), "answers 500") {
		t.Error("the export has the store's words")
	}
}

// Each of these has the same rows, and so the same prefix in the store, as another database. It takes
// for orphans what came after it was copied, and deletes nothing while the store is the other's.
func TestSweepOfACopiedDatabase(t *testing.T) {
	t.Parallel()
	const cluster, database, started, renewed = 0, 1, 2, 4
	const service = 3
	none, waits, refuses := "deletes", "waits", "refuses"
	w := newWorld(t, inMemory, faulty)
	for name, at := range map[string]struct {
		field int
		value string
		age   time.Duration // of the other's claim
		want  string
	}{
		"itself":                    {renewed, "", 50 * time.Minute, none},
		"itself, after it was away": {renewed, "", 50 * time.Hour, none},
		"a copy of the files, beside its original":     {started, "1", 50 * time.Minute, waits},
		"after a restart or a failover":                {started, "1", 61 * time.Minute, "takes over"},
		"a copy in the same PostgreSQL":                {database, "1", 50 * time.Minute, waits},
		"a dump, restored in another PostgreSQL":       {cluster, "1", 61 * time.Minute, refuses},
		"of a role that cannot read the cluster":       {cluster, "unknown", 50 * time.Minute, none},
		"a copy of another service, which is away":     {service, "did:web:mlsd.example.org", 61 * time.Minute, refuses},
		"a copy of another service, beside it":         {service, "did:web:mlsd.example.org", time.Minute, refuses},
		"a claim that another clock made in an hour":   {started, "1", -time.Hour, waits},
		"a claim that nobody can read, such as a page": {renewed, "<html>", 0, "fails"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			alice := w.user()
			alice.attach(alice.create(), 100).remove(alice, nil).ok()
			prefix, _, _ := strings.Cut(w.memory().Names()[0], "/")
			claim := "databases/" + prefix
			sweep := func() error { return w.sweeper.RunOnce(t.Context()) }
			newer := func() {
				w.memory().Add(prefix+"/0192f3a4-5b6c-7d8e-9f01-23456789abcd/1-newer", time.Now().Add(-25*time.Hour))
			}
			left := func() int { return len(w.memory().Names()) }
			set := func(age time.Duration) {
				fields := strings.Fields(string(w.memory().Object(claim)))
				fields[renewed] = strconv.FormatInt(time.Now().Add(-age).Unix(), 10)
				if at.value != "" {
					fields[at.field] = at.value
				}
				w.memory().Change(claim, []byte(strings.Join(fields, " ")))
			}
			if err := sweep(); err != nil || left() != 0 { // in a new store
				t.Fatalf("%v; %d objects are left", err, left())
			}
			newer()
			set(at.age)
			// A sweeper lists on behind the last object that it saw, so two rounds see all.
			first := sweep()
			afterFirst := left()
			second := sweep()
			switch at.want {
			case none:
				if first != nil || second != nil || left() != 0 {
					t.Errorf("%v, %v; %d objects are left", first, second, left())
				}
				if now := strings.Fields(string(w.memory().Object(claim)))[renewed]; now <
					strconv.FormatInt(time.Now().Add(-time.Minute).Unix(), 10) {
					t.Errorf("the claim is of %s", now)
				}
			case "takes over": // and deletes from the next round on
				if first != nil || second != nil || afterFirst != 1 || left() != 0 {
					t.Errorf("%v, %v; %d objects are left after the first round, and %d", first, second, afterFirst, left())
				}
				newer()
				set(0) // of two that take it over at the same time, the other was the last
				if err := errors.Join(sweep(), sweep()); err != nil || left() != 1 {
					t.Errorf("%v; %d objects are left", err, left())
				}
			case waits:
				if first != nil || second != nil || left() != 1 {
					t.Errorf("%v, %v; %d objects are left", first, second, left())
				}
				set(at.age - time.Minute) // the other lives
				for range 2 {
					if err := sweep(); !errors.Is(err, attachments.ErrOtherDatabase) || left() != 1 {
						t.Errorf("%v; %d objects are left", err, left())
					}
				}
			case refuses:
				if !errors.Is(first, attachments.ErrOtherDatabase) || !errors.Is(second, attachments.ErrOtherDatabase) ||
					left() != 1 {
					t.Errorf("%v, %v; %d objects are left", first, second, left())
				}
			default:
				if first == nil || second == nil || left() != 1 {
					t.Errorf("%v, %v; %d objects are left", first, second, left())
				}
			}
			w.memory().Change(claim, nil) // the operator has decided
			if err := errors.Join(sweep(), sweep()); err != nil || left() != 0 {
				t.Errorf("%v; %d objects are left", err, left())
			}
		})
	}
}
