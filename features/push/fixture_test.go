package push_test

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/failpoint"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
	"mlsd/welcome"
)

const (
	alice syntax.DID = "did:plc:alice"
	bob   syntax.DID = "did:plc:bob"
	carol syntax.DID = "did:plc:carol"
)

type uncounted struct{ idemtest.Uncounted }

func (uncounted) PushAttempted(push.Kind, string, string) {}
func (uncounted) PushEnded(string)                        {}
func (uncounted) PushChallenged(string, string)           {}
func (uncounted) PushBacklog(int64, time.Duration)        {}

// received is a call as the receiver got it.
type received struct {
	header http.Header
	path   string
	body   []byte
}

// receiver is a webhook. answer can be changed between calls. The default answer is 200.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex // guards the rest
	calls  []received
	answer http.HandlerFunc
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r)
	r.URL = strings.Replace(r.URL, "127.0.0.1", "localhost", 1) // which must answer challenges
	t.Cleanup(r.Close)
	return r
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	r.calls = append(r.calls, received{req.Header, req.URL.Path, body})
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(rw, req.WithContext(context.WithValue(req.Context(), bodyKey{}, body)))
	}
}

// bodyKey names the body of a call in the context of its request.
type bodyKey struct{}

// answers sets the answer to calls from now on.
func (r *receiver) answers(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func status(code int) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
}

// taken returns the calls since the last time.
func (r *receiver) taken() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// bench is a convo of alice, bob and carol. Bob has a device that is called.
type bench struct {
	t      *testing.T
	db     *pgxpool.Pool
	log    *messages.Log
	faults *failpoint.Set
	worker *push.Worker
	convo  uuid.UUID
	phone  *receiver // bob's
	target push.Target
	passed atomic.Int64 // how far the clock of the workers' limits is ahead, as a time.Duration

	standing bool // the stream publishes nothing of the outbox
}

var policy = push.Policy{APNs: true, Webhooks: true, AllowLoopback: true, Targets: 100, WebPush: []byte{4}}

func newBench(t *testing.T, changes ...func(*push.Config)) *bench {
	t.Helper()
	b := &bench{
		t: t, db: pgtest.Database(t, pgtest.MaxConns(20)), faults: failpoint.New(), convo: uuid.Must(uuid.NewV7()),
		phone: newReceiver(t),
	}
	b.log = messages.NewLog(b.db, 0, uncounted{}, slog.New(slog.DiscardHandler), b.faults)
	b.worker = b.newWorker(changes...)
	b.exec(`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, 5,
			now())`,
		b.convo, b.convo[:], alice)
	b.exec(`
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT $1, did, CASE did WHEN 'did:plc:alice' THEN 'creator' ELSE 'member' END, now(), 0
		FROM unnest($2::text[]) AS did`, b.convo, []syntax.DID{alice, bob, carol})
	b.target = b.register(push.Target{DID: bob, DeviceID: "phone", Kind: push.KindWebhook, Address: b.phone.URL + "/hook"})
	t.Cleanup(func() {
		violations, err := invariants.Check(context.Background(), b.db)
		if err != nil || len(violations) > 0 {
			t.Errorf("violated: %q, %v", violations, err)
		}
	})
	return b
}

// newWorker returns the worker of another node. Its back-off has no jitter.
func (b *bench) newWorker(changes ...func(*push.Config)) *push.Worker {
	log := slog.New(slog.NewTextHandler(b.t.Output(), nil))
	c := push.Config{
		DB: b.db, Writes: idem.New(b.db, uncounted{}, log, b.faults), Webhooks: push.NewWebhooks(true), Metrics: uncounted{},
		Log: log, Faults: b.faults, Jitter: func(longest time.Duration) time.Duration { return longest },
		Now: func() time.Time { return time.Now().Add(time.Duration(b.passed.Load())) },
	}
	for _, change := range changes {
		change(&c)
	}
	return push.NewWorker(c)
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) count(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.db.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// register registers a target that needs no challenge any more.
func (b *bench) register(target push.Target) push.Target {
	b.t.Helper()
	target = b.registerNew(target)
	b.exec(`UPDATE push_targets SET state = 'active', challenge_at = NULL WHERE did = $1 AND device_id = $2`, target.DID,
		target.DeviceID)
	return target
}

// registerNew registers a target.
func (b *bench) registerNew(target push.Target) push.Target {
	b.t.Helper()
	err := pgx.BeginFunc(b.t.Context(), b.db, func(tx pgx.Tx) (err error) {
		target, err = push.Register(b.t.Context(), tx, policy, target)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return target
}

func (b *bench) draft(text string) messages.Draft {
	return messages.Draft{
		ConvoID: b.convo, GroupID: b.convo[:], Sender: alice, Key: rand.Text(), Kind: mls.ContentTypeApplication, Epoch: 5,
		Body: mlstest.Message(b.convo[:], 5, text),
		Hash: idem.Content{{Name: "ciphertext", JSON: []byte(`"` + text + `"`)}}.Hash(),
	}
}

// send sends a message of alice's.
func (b *bench) send(text string) {
	b.t.Helper()
	results, err := b.log.Append(b.t.Context(), []messages.Draft{b.draft(text)})
	if err != nil || results[0].Err != nil {
		b.t.Fatal(err, results)
	}
}

// deposit deposits a Welcome for devices of bob, and runs more before the commit.
func (b *bench) deposit(epoch int64, more func() error, devices ...string) error {
	to := make([]welcome.Recipient, len(devices))
	for i, d := range devices {
		to[i] = welcome.Recipient{DID: bob, DeviceID: d, Ref: mls.KeyPackageRef(rand.Text())}
	}
	return pgx.BeginFunc(b.t.Context(), b.db, func(tx pgx.Tx) error {
		if err := welcome.Add(b.t.Context(), tx, b.convo, epoch, []byte("welcome"), to); err != nil {
			return err
		}
		return more()
	})
}

// run makes the worker do what is due.
func (b *bench) run() {
	b.t.Helper()
	if err := b.worker.RunOnce(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// job is a row of push_jobs.
type job struct {
	ID       uuid.UUID
	DID      syntax.DID
	Device   string
	State    string
	Reason   string
	Attempts int
	Wait     time.Duration // until the next attempt
	Error    string
}

func (b *bench) jobs() []job {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), `
		SELECT id, did, device_id, state, reason, attempts, next_attempt_at - clock_timestamp(), coalesce(last_error, '')
		FROM push_jobs ORDER BY created_at, did, device_id`)
	if err != nil {
		b.t.Fatal(err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
	if err != nil {
		b.t.Fatal(err)
	}
	return jobs
}

// only returns the only job.
func (b *bench) only() job {
	b.t.Helper()
	jobs := b.jobs()
	if len(jobs) != 1 {
		b.t.Fatalf("%d jobs: %+v", len(jobs), jobs)
	}
	return jobs[0]
}

// due makes the next attempt of every job due.
func (b *bench) due() {
	b.t.Helper()
	b.passed.Add(int64(2 * time.Hour))
	pgtest.Age(b.t, b.db, "push_jobs", 2*time.Hour, "next_attempt_at")
}

// lapse makes every job due and ends the leases of all workers.
func (b *bench) lapse() {
	b.t.Helper()
	b.due()
	pgtest.Age(b.t, b.db, "idempotency_keys", time.Hour, "lease_expires_at")
}
