package push_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/worker"
)

// begin runs the worker until the test ends.
func (b *bench) begin(w *push.Worker) {
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, worker.NewRounds(worker.Clock{}), 20*time.Millisecond)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// hang makes a receiver that answers nothing before the test ends. The channel gets each call.
func hang(t *testing.T) (*receiver, chan string) {
	r, came := newReceiver(t), make(chan string, 1000)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	r.answers(func(_ http.ResponseWriter, req *http.Request) {
		came <- req.URL.Path
		select {
		case <-ended:
		case <-req.Context().Done():
		}
	})
	return r, came
}

// member adds a member to the convo who has registered n webhooks at a receiver.
func (b *bench) member(did syntax.DID, at *receiver, n int) {
	b.t.Helper()
	b.exec(`INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $2, 'member', now(), 0)`, b.convo,
		did)
	for i := range n {
		b.register(push.Target{DID: did, DeviceID: strconv.Itoa(i), Kind: push.KindWebhook,
			Address: fmt.Sprintf("%s/%s/%d", at.URL, did, i)})
	}
}

// soon is how long these tests wait for a call that must not wait for calls that hang. Those end
// after a minute.
const soon = 50 * time.Second

// H6: two accounts have 100 webhooks each that hang. Everybody else is called at once.
func TestHangingWebhooks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hanging, came := hang(t)
	b.exec(`DELETE FROM push_targets`)
	b.member("did:plc:mallory", hanging, 100)
	b.member("did:plc:oscar", hanging, 100)
	b.begin(b.newWorker(func(c *push.Config) { c.Timeout = time.Minute }))
	b.send("for the webhooks that hang")
	for range 4 {
		<-came
	}
	called := make(chan struct{}, 1)
	b.phone.answers(func(http.ResponseWriter, *http.Request) { called <- struct{}{} })
	b.register(push.Target{DID: bob, DeviceID: "phone", Kind: push.KindWebhook, Address: b.phone.URL + "/hook"})
	// all are due before bob's
	b.exec(`UPDATE push_jobs SET next_attempt_at = next_attempt_at - interval '1 hour' WHERE state = 'pending'`)
	sent := time.Now()
	b.send("for bob")
	select {
	case <-called:
		t.Logf("bob was called after %v, while %d calls hang", time.Since(sent), 4+len(came))
	case <-time.After(soon):
		t.Fatalf("bob was not called within %v, while %d calls hang", soon, 4+len(came))
	}
	if n := 4 + len(came); n != 4 {
		t.Errorf("%d calls of one host at a time", n)
	}
}

// E2: while messages come in without end, devices are called.
func TestFanOutEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`
		CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO push_convos SELECT gen_random_uuid(), 'did:plc:alice', now() FROM gone;
			RETURN NULL;
		END $$`)
	b.send("hello")
	b.exec(`INSERT INTO push_convos SELECT gen_random_uuid(), 'did:plc:alice', now() FROM generate_series(1, 31)`)
	b.exec(`CREATE TRIGGER again AFTER DELETE ON push_convos REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE
			FUNCTION again()`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := b.worker.RunOnce(ctx)
	if calls := b.phone.taken(); err != nil || len(calls) != 1 {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
}

// One transaction makes jobs for a bounded number of devices, so that it holds the rows of senders
// for a bounded time, whatever convos outsiders make. A single larger convo is one transaction.
func TestFanOutIsBoundedInDevices(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`
		INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		SELECT 'did:plc:x' || n, 'phone', 'apns', n::text, now(), gen_random_uuid() FROM generate_series(1, 900) AS n`)
	b.exec(`
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at)
		SELECT ('00000000-0000-7000-8000-' || lpad(c::text, 12, '0'))::uuid, int4send(c), 'did:plc:x1', 1, 1, now() FROM
			generate_series(1, 6) AS c`)
	b.exec(`
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT c.id, 'did:plc:x' || n, CASE n WHEN 1 THEN 'creator' ELSE 'member' END, now(), 0 FROM convos c,
			generate_series(1, 900) AS n WHERE c.creator_did = 'did:plc:x1'`)
	b.exec(`INSERT INTO push_convos SELECT id, 'did:plc:x1', now() FROM convos WHERE creator_did = 'did:plc:x1'`)
	b.exec(`CREATE TABLE taken (n bigint)`)
	b.exec(`
		CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO taken SELECT count(*) FROM gone;
			RETURN NULL;
		END $$`)
	b.exec(`CREATE TRIGGER take AFTER DELETE ON push_convos REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE
			FUNCTION take()`)
	if more, err := b.worker.FanOut(t.Context()); err != nil || more {
		t.Fatalf("more %t, %v", more, err)
	}
	if n := b.count(`SELECT count(*) FROM taken WHERE n = 2`); n != 3 || b.count(`SELECT count(*) FROM push_convos`) != 0 {
		t.Errorf("%d transactions with two convos, want 3", n)
	}
	if n := b.count(`SELECT count(*) FROM push_jobs`); n != 899 {
		t.Errorf("%d jobs", n)
	}
}

// E9: the refusal of a call that was made for an older registration leaves the newer one, also if
// both have the same address.
func TestRefusalOfAnOlderRegistration(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(func(rw http.ResponseWriter, _ *http.Request) {
		b.register(b.target)
		rw.WriteHeader(http.StatusGone)
	})
	b.send("hello")
	b.run()
	if n := b.count(`SELECT count(*) FROM push_targets`); n != 1 {
		t.Fatalf("%d targets: the newer registration is deleted", n)
	}
	b.phone.answers(status(http.StatusGone))
	b.send("again")
	b.run()
	if n := b.count(`SELECT count(*) FROM push_targets`); n != 0 {
		t.Fatalf("%d targets after 410", n)
	}
}

// deadlines records how much time each statement has. It is a pgx.QueryTracer and BatchTracer.
type deadlines struct {
	mu   sync.Mutex
	left map[string]time.Duration // by statement; -1: for ever
}

func (d *deadlines) add(ctx context.Context, statement string) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left[statement] = -1
	if deadline, ok := ctx.Deadline(); ok {
		d.left[statement] = time.Until(deadline)
	}
	return ctx
}

// TraceQueryStart implements pgx.QueryTracer.
func (d *deadlines) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return d.add(ctx, q.SQL)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*deadlines) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (d *deadlines) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		d.add(ctx, q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*deadlines) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*deadlines) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// E7: every statement of the worker has a deadline, so that a connection that hangs does not stop
// it.
func TestStatementsHaveDeadlines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	traced := &deadlines{left: map[string]time.Duration{}}
	config := b.db.Config()
	config.ConnConfig.Tracer = traced
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := b.newWorker(func(c *push.Config) {
		c.DB, c.Writes = db, idem.New(db, uncounted{}, slog.New(slog.DiscardHandler), b.faults)
	})
	for range 2 { // a call that succeeds, and one that fails
		b.send("hello")
		if err := w.RunOnce(context.Background()); err != nil {
			t.Fatal(err)
		}
		b.phone.answers(status(http.StatusServiceUnavailable))
	}
	b.called(2, "in two rounds")
	for statement, left := range traced.left {
		if left < 0 || left > 40*time.Second {
			t.Errorf("%v left for %.80q", left, statement)
		}
	}
}

// E1: a connection without a cursor that begins between the COMMIT of a message and its fan-out is
// not sent the message. So the device is called.
func TestConnectionWithoutCursor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	here := b.node()
	b.send("before the connection")
	here.Connect(bob, "phone", false)
	b.sync(here)
	b.run()
	b.called(1, "for the message before the connection")
	b.send("after it")
	b.run()
	b.live(50*time.Second, here)
	b.called(0, "for the message after it")
	if j := b.jobs()[1]; j.State != "done" || j.Error != "it was connected" {
		t.Fatalf("%+v", j)
	}
}

// E1: a connection without a cursor does not stand for an older one that has ended. One with a
// cursor does.
func TestConnectionsWithAndWithoutCursor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		connect func(*events.Presence)
		calls   int
	}{
		"with":    {func(p *events.Presence) { p.Connect(bob, "phone", true) }, 0},
		"without": {func(p *events.Presence) { p.Connect(bob, "phone", false) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			first, second := b.node(), b.node()
			first.Connect(bob, "phone", true)
			b.sync(first)
			b.send("hello")
			b.run()
			b.pass(time.Second)
			tc.connect(second)
			b.sync(second)
			first.Disconnect(bob, "phone", true)
			b.sync(first)
			b.live(60*time.Second, first, second)
			b.called(tc.calls, name+" a cursor")
		})
	}
}

// newFailingBench returns a bench in which a message waits for n webhooks of one host. The host fails.
func newFailingBench(t *testing.T, n int) (*bench, *receiver) {
	b := newBench(t)
	b.exec(`DELETE FROM push_targets`)
	failing := newReceiver(t)
	failing.answers(status(http.StatusServiceUnavailable))
	b.member("did:plc:mallory", failing, n)
	b.send("hello")
	return b, failing
}

// H6: a host that does not answer is left alone for a while, and no job is lost. Then one call
// probes it.
func TestFailingHostIsLeftAlone(t *testing.T) {
	t.Parallel()
	b, failing := newFailingBench(t, 20)
	for range 10 {
		b.run()
	}
	if n := len(failing.taken()); n < 5 || n > 8 {
		t.Fatalf("%d calls before it is left alone, want 5 to 8", n)
	}
	b.pass(4 * time.Second)
	b.run()
	if n := len(failing.taken()); n != 0 {
		t.Fatalf("%d calls after 4 s", n)
	}
	b.pass(2 * time.Second)
	b.run()
	if n := len(failing.taken()); n != 1 {
		t.Fatalf("%d calls probe it", n)
	}
	failing.answers(nil)
	for range 60 {
		b.pass(20 * time.Minute)
		b.run()
	}
	if n := b.count(`SELECT count(*) FROM push_jobs WHERE state <> 'done'`); n != 0 || len(failing.taken()) != 20 {
		t.Fatalf("%d jobs are left: %+v", n, b.jobs())
	}
}

// H6: the jobs of a host that never answers end.
func TestDeadHost(t *testing.T) {
	t.Parallel()
	b, dead := newFailingBench(t, 10)
	for range 30 {
		b.run()
		b.pass(time.Hour)
	}
	if n := b.count(`SELECT count(*) FROM push_jobs WHERE state = 'dead'`); n != 10 {
		t.Fatalf("%d of 10 jobs are dead: %+v", n, b.jobs())
	}
	if n := len(dead.taken()); n > 40 {
		t.Errorf("%d calls of a host that never answers", n)
	}
}

// H6: the jobs of one account that are due before all others do not hide the others.
func TestManyJobsOfOneHost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hanging, came := hang(t)
	b.exec(`
		INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		SELECT 'did:plc:m' || n, 'phone', 'webhook', $1 || '/' || n, now(), gen_random_uuid()
		FROM generate_series(1, 3000) n`, hanging.URL)
	b.exec(`
		INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
		SELECT did, gen_random_uuid(), device_id, 'message', now() - interval '1 hour', now() FROM push_targets WHERE did LIKE
			'did:plc:m%'`)
	called := make(chan struct{}, 1)
	b.phone.answers(func(http.ResponseWriter, *http.Request) { called <- struct{}{} })
	b.send("for bob")
	b.begin(b.newWorker(func(c *push.Config) { c.Timeout = time.Minute }))
	<-came
	sent := time.Now()
	select {
	case <-called:
		t.Logf("bob was called after %v, behind 3,000 jobs", time.Since(sent))
	case <-time.After(soon):
		t.Fatalf("bob was not called within %v", soon)
	}
}

// H6: the jobs of many hosts that refuse connections do not hide the jobs behind them either.
func TestManyJobsOfManyHosts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, port, err := net.SplitHostPort(b.phone.Listener.Addr().String()) // it listens on one address only
	if err != nil {
		t.Fatal(err)
	}
	b.exec(`
		INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		SELECT 'did:plc:m' || n, 'phone', 'webhook', 'http://127.1.' || n / 200 || '.' || n % 200 + 1 || ':' || $1 || '/',
			now(), gen_random_uuid()
		FROM generate_series(1, 2000) n`, port)
	b.exec(`
		INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
		SELECT did, gen_random_uuid(), device_id, 'message', now() - interval '1 hour', now() FROM push_targets WHERE did LIKE
			'did:plc:m%'`)
	called := make(chan struct{}, 2)
	b.phone.answers(func(http.ResponseWriter, *http.Request) { called <- struct{}{} })
	w := b.newWorker(func(c *push.Config) { c.Timeout = time.Minute })
	first := b.count(`WITH away AS (UPDATE push_jobs SET next_attempt_at = now() + interval '1 hour' RETURNING 1) SELECT
			count(*) FROM away`)
	b.send("so that bob's receiver has answered")
	if err := w.RunOnce(t.Context()); err != nil || first != 2000 {
		t.Fatal(first, err)
	}
	<-called
	b.exec(`UPDATE push_jobs SET next_attempt_at = now() - interval '1 hour' WHERE state = 'pending'`)
	b.send("for bob")
	b.begin(w)
	select {
	case <-called:
	case <-time.After(soon):
		t.Fatalf("bob was not called within %v, behind 2,000 jobs of 2,000 hosts", soon)
	}
}
