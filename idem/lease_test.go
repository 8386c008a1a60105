package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// outside returns the request for work outside the database under a key.
func outside(key string) idem.Request {
	r := request(key, "job", `"1"`)
	r.Caller, r.NSID, r.Life, r.Lease = "mlsd", idem.NSIDPush, idem.Push.Life, idem.Push.Lease
	return r
}

// done returns the end of work that succeeds and has an effect.
func (b *bench) done(t *testing.T, response string) idem.Done {
	return idem.Done{Outcome: idem.Success, Response: []byte(response),
		Effect: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (note) VALUES ($1)`, response)
			return err
		}}
}

// row is the row of a key.
type row struct {
	state, outcome string
	fence          int64
	seconds        float64 // that the work took
}

func (b *bench) row(t *testing.T, key string) (r row) {
	t.Helper()
	err := b.db.QueryRow(t.Context(), `
		SELECT state, outcome, fence, coalesce(extract(epoch FROM completed_at - started_at), -1)
		FROM idempotency_keys WHERE key = $1`, key).Scan(&r.state, &r.outcome, &r.fence, &r.seconds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lapse ends the leases of all reservations.
func (b *bench) lapse(t *testing.T) {
	t.Helper()
	pgtest.Age(t, b.db, "idempotency_keys", time.Hour, "lease_expires_at")
}

// blocked is work that waits for a signal to continue.
type blocked struct {
	begun, goOn chan struct{}
	ctx         context.Context // of the work, after it has begun
	out         <-chan outcome  // of the attempt that begin has started
}

func (b *bench) blocked(t *testing.T, response string) (*blocked, idem.Work) {
	h := &blocked{begun: make(chan struct{}), goOn: make(chan struct{})}
	return h, func(ctx context.Context, _ int64) (idem.Done, error) {
		h.ctx = ctx
		close(h.begun)
		select {
		case <-h.goOn:
		case <-ctx.Done():
		}
		return b.done(t, response), nil
	}
}

// outcome is what Run has returned.
type outcome struct {
	answer idem.Answer
	err    error
}

func (b *bench) start(ctx context.Context, key string, work idem.Work) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		answer, err := b.Run(ctx, outside(key), work)
		out <- outcome{answer, err}
	}()
	return out
}

// begin starts blocked work under the key k, and returns when it has begun.
func (b *bench) begin(t *testing.T, response string) *blocked {
	h, work := b.blocked(t, response)
	h.out = b.start(t.Context(), "k", work)
	<-h.begun
	return h
}

// succeeds lets the work continue, which must succeed.
func (h *blocked) succeeds(t *testing.T) {
	t.Helper()
	close(h.goOn)
	if out := <-h.out; out.err != nil {
		t.Fatal(out.err)
	}
}

// newBenchWithBeats returns a bench, and the channel of its heartbeats.
func newBenchWithBeats(t *testing.T) (*bench, chan<- time.Time) {
	beats := make(chan time.Time)
	return newBench(t, idem.WithBeats(func(time.Duration) (<-chan time.Time, func()) { return beats, func() {} })), beats
}

// The reservation is in the database before the work begins. The end of the work is recorded with
// the time that the work took.
func TestReservation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.begin(t, "first")
	if r := b.row(t, "k"); r.state != "processing" || r.fence != 1 {
		t.Fatalf("while it runs: %+v", r)
	}
	close(h.goOn)
	if out := <-h.out; out.err != nil || string(out.answer.Body) != "first" {
		t.Fatalf("%+v", out)
	}
	if r := b.row(t, "k"); r.state != "completed" || r.outcome != "success" || r.seconds < 0 {
		t.Fatalf("in the end: %+v", r)
	}
}

// A duplicate learns since when the first request runs, and how long to wait.
func TestStillProcessing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.begin(t, "first")
	_, err := b.Run(t.Context(), outside("k"), func(context.Context, int64) (idem.Done, error) {
		t.Error("the duplicate has run")
		return idem.Done{}, nil
	})
	var running *idem.RunningError
	if !errors.As(err, &running) || !errors.Is(err, idem.ErrInProgress) || running.Since.IsZero() || running.Left <= 0 ||
		!strings.Contains(err.Error(), "processing_started_at=") {
		t.Fatalf("the duplicate: %v", err)
	}
	h.succeeds(t)
}

// If a holder dies, another takes over when the lease is over, and not before.
func TestTimeoutTakeover(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// the work ends as if the holder had died
	failpointtest.Arm(t, b.faults, failpoint.AfterReserve, idem.NSIDPush, failpoint.Error)
	work := func(_ context.Context, fence int64) (idem.Done, error) {
		return b.done(t, fmt.Sprint("fence ", fence)), nil
	}
	if _, err := b.Run(t.Context(), outside("k"), work); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatal(err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", 30*time.Second, "lease_expires_at")
	if _, err := b.Run(t.Context(), outside("k"), work); !errors.Is(err, idem.ErrInProgress) {
		t.Fatalf("within the lease: %v", err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", time.Minute, "lease_expires_at")
	answer, err := b.Run(t.Context(), outside("k"), work)
	if err != nil || string(answer.Body) != "fence 2" || b.counts.takenOver.Load() != 1 || b.effects(t) != 1 {
		t.Fatalf("after it: %+v, %v", answer, err)
	}
}

// Every repetition gets the outcome of the work, whether it was a success or not.
func TestCachedSuccess(t *testing.T)        { t.Parallel(); cached(t, idem.Success) }
func TestCachedPartialFailure(t *testing.T) { t.Parallel(); cached(t, idem.Partial) }
func TestCachedFailure(t *testing.T)        { t.Parallel(); cached(t, idem.Failure) }

func cached(t *testing.T, want idem.Outcome) {
	t.Helper()
	b := newBench(t)
	ran := 0
	work := func(context.Context, int64) (idem.Done, error) {
		ran++
		return idem.Done{Outcome: want, Response: []byte(want + "!")}, nil
	}
	for i := range 2 {
		answer, err := b.Run(t.Context(), outside("k"), work)
		if err != nil || answer.Outcome != want || string(answer.Body) != string(want)+"!" || answer.Replayed != (i == 1) {
			t.Fatalf("run %d: %+v, %v", i, answer, err)
		}
	}
	if ran != 1 || b.row(t, "k").outcome != string(want) {
		t.Fatalf("ran %d times: %+v", ran, b.row(t, "k"))
	}
	other := outside("k")
	other.Input = idem.Content{{Name: "job", JSON: []byte(`"2"`)}}
	var conflict *idem.ConflictError
	if _, err := b.Run(t.Context(), other, nil); !errors.As(err, &conflict) {
		t.Fatalf("the key for other work: %v", err)
	}
}

// An attempt without an outcome is released. The next one begins at once with a higher fence.
func TestReleased(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	refused := errors.New("no answer")
	_, err := b.Run(t.Context(), outside("k"),
		func(context.Context, int64) (idem.Done, error) { return idem.Done{}, refused })
	if r := b.row(t, "k"); !errors.Is(err, refused) || r.state != "released" || r.outcome != "failure" || r.seconds < 0 {
		t.Fatalf("%v, %+v", err, r)
	}
	var fence int64
	answer, err := b.Run(t.Context(), outside("k"), func(_ context.Context, f int64) (idem.Done, error) {
		fence = f
		return b.done(t, "second"), nil
	})
	if err != nil || fence != 2 || answer.Replayed || b.effects(t) != 1 {
		t.Fatalf("fence %d, %+v, %v", fence, answer, err)
	}
}

// zombie: a heartbeat or completion without a fence extended or overwrote its successor's lease.
func TestZombieFenced(t *testing.T) {
	t.Parallel()
	b, _ := newBenchWithBeats(t)
	h := b.begin(t, "zombie")
	b.lapse(t) // to other attempts the holder looks frozen
	successor := b.begin(t, "successor")
	if r := b.row(t, "k"); r.state != "processing" || r.fence != 2 || b.counts.takenOver.Load() != 1 {
		t.Fatalf("after the takeover: %+v", r)
	}
	close(h.goOn) // it continues, and tries to complete
	if out := <-h.out; !errors.Is(out.err, idem.ErrLeaseLost) {
		t.Fatalf("the zombie: %+v", out)
	}
	if r := b.row(t, "k"); r.state != "processing" || r.fence != 2 || b.effects(t) != 0 {
		t.Fatalf("after the zombie's completion: %+v, %d effects", r, b.effects(t))
	}
	close(successor.goOn)
	if out := <-successor.out; out.err != nil || string(out.answer.Body) != "successor" || b.effects(t) != 1 {
		t.Fatalf("the successor: %+v, %d effects", out, b.effects(t))
	}
}

// After a takeover the heartbeat of the first holder matches no row, and ends its work.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	b, beats := newBenchWithBeats(t)
	h := b.begin(t, "x")
	left := func() (left time.Duration) {
		t.Helper()
		if err := b.db.QueryRow(t.Context(),
			`SELECT lease_expires_at - clock_timestamp() FROM idempotency_keys`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left
	}
	pgtest.Age(t, b.db, "idempotency_keys", 50*time.Second, "lease_expires_at")
	short := left()
	beats <- time.Time{}
	beats <- time.Time{} // received only after the first heartbeat is done
	if now := left(); now <= short+40*time.Second {
		t.Fatalf("a heartbeat has extended the lease from %s to %s", short, now)
	}
	// The second heartbeat possibly extends the lease just after the test has ended it. Then the
	// takeover finds the work running, and the test ends the lease once more.
	other, work2 := b.blocked(t, "y")
	var second <-chan outcome
	for taken := false; !taken; {
		b.lapse(t)
		second = b.start(t.Context(), "k", work2)
		select {
		case <-other.begun:
			taken = true
		case out := <-second:
			if !errors.Is(out.err, idem.ErrInProgress) {
				t.Fatalf("the takeover: %+v", out)
			}
		}
	}
	for range 100_000 { // both holders receive from one channel, and the second can get many beats in a row
		if h.ctx.Err() != nil {
			break
		}
		select {
		case beats <- time.Time{}:
		case <-h.ctx.Done():
		}
	}
	if h.ctx.Err() == nil {
		t.Fatal("the first holder has not noticed that it lost the lease")
	}
	if !errors.Is(context.Cause(h.ctx), idem.ErrLeaseLost) || b.counts.heartbeatLost.Load() == 0 {
		t.Fatalf("the first holder's work ended with %v", context.Cause(h.ctx))
	}
	if out := <-h.out; !errors.Is(out.err, idem.ErrLeaseLost) {
		t.Fatalf("%+v", out)
	}
	if r := b.row(t, "k"); r.fence != 2 || r.state != "processing" {
		t.Fatalf("%+v", r)
	}
	close(other.goOn)
	if out := <-second; out.err != nil {
		t.Fatal(out.err)
	}
}

// A heartbeat that cannot be written has no effect if the next one can be written in time.
func TestDroppedHeartbeat(t *testing.T) {
	t.Parallel()
	b, beats := newBenchWithBeats(t)
	h := b.begin(t, "x")
	failpointtest.Arm(t, b.faults, failpoint.Heartbeat, idem.NSIDPush, failpoint.Error)
	for range 3 {
		beats <- time.Time{}
	}
	close(h.goOn)
	if out := <-h.out; out.err != nil || b.counts.heartbeatLost.Load() != 1 {
		t.Fatalf("%+v, %d lost", out, b.counts.heartbeatLost.Load())
	}
}

// takeover-race: an unconditional takeover let two workers win.
func TestTakeoverRace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.begin(t, "dead")
	b.lapse(t)
	var mu sync.Mutex
	fences := map[int64]int{}
	release := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	defer goOn()
	outs := make([]<-chan outcome, 16)
	for i := range outs {
		outs[i] = b.start(t.Context(), "k", func(_ context.Context, fence int64) (idem.Done, error) {
			mu.Lock()
			fences[fence]++
			winners := len(fences)
			mu.Unlock()
			if winners > 1 {
				return idem.Done{}, errors.New("a second one has taken over")
			}
			<-release
			return b.done(t, "winner"), nil
		})
	}
	results := make(chan outcome, len(outs))
	for _, out := range outs {
		go func() { results <- <-out }()
	}
	for range len(outs) - 1 { // all others lose
		if out := <-results; !errors.Is(out.err, idem.ErrInProgress) {
			t.Fatalf("%+v", out)
		}
	}
	goOn()
	if out := <-results; out.err != nil || fences[2] != 1 || len(fences) != 1 {
		t.Fatalf("%+v, fences %v", out, fences)
	}
	close(h.goOn)
	if out := <-h.out; !errors.Is(out.err, idem.ErrLeaseLost) || b.effects(t) != 1 {
		t.Fatalf("%+v, %d effects", out, b.effects(t))
	}
}

// frozen-lease: now() in a transaction made an expired lease look valid.
func TestFrozenLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := b.begin(t, "x")
	// The takeover's transaction began before the lease ended. It must see that the lease has
	// ended.
	if err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(),
			`UPDATE idempotency_keys SET lease_expires_at = clock_timestamp() + interval '300 milliseconds'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT now()`); err != nil {
			return err
		}
		var frozen, lapsed bool
		for !lapsed {
			if err := tx.QueryRow(t.Context(),
				`SELECT lease_expires_at > now(), lease_expires_at <= clock_timestamp() FROM idempotency_keys`).
				Scan(&frozen, &lapsed); err != nil {
				return err
			}
		}
		if !frozen {
			t.Error("the test has not shown what it should")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(t.Context(), outside("k"),
		func(context.Context, int64) (idem.Done, error) { return b.done(t, "y"), nil }); err != nil {
		t.Fatal(err)
	}
	close(h.goOn)
	<-h.out
}

// The completion and its effect are one transaction. The outcome of a lost COMMIT is looked up.
func TestCompletionIsOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, c := range []struct {
		point   string
		effects int
	}{{failpoint.AfterReserve, 0}, {failpoint.AfterWork, 0}, {failpoint.BeforeCommit, 0}, {failpoint.AfterCommit, 1}} {
		failpointtest.Arm(t, b.faults, c.point, idem.NSIDPush, failpoint.Error)
		before := b.effects(t)
		work := func(context.Context, int64) (idem.Done, error) { return b.done(t, c.point), nil }
		answer, err := b.Run(t.Context(), outside(c.point), work)
		if (err == nil) != (c.effects == 1) || b.effects(t)-before != c.effects {
			t.Fatalf("%s: %+v, %v, %d effects", c.point, answer, err, b.effects(t)-before)
		}
		if c.effects == 0 { // as after a crash: the lease ends, and another attempt takes over
			b.lapse(t)
			if _, err := b.Run(t.Context(), outside(c.point), work); err != nil || b.effects(t)-before != 1 {
				t.Fatalf("%s, taken over: %v, %d effects", c.point, err, b.effects(t)-before)
			}
		}
	}
}

// A key whose record has expired is new again. The answer says that the key was used before. After
// that the key belongs to the new request.
func TestExpiredKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, err := b.Do(t.Context(), request("k", "a", "1"), effect)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", 7*24*time.Hour-time.Minute, "expires_at")
	if again, err := b.Do(t.Context(), request("k", "a", "1"), effect); err != nil || !again.Replayed || again.Expired {
		t.Fatalf("a minute before its time: %+v, %v", again, err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", 2*time.Minute, "expires_at")
	second, err := b.Do(t.Context(), request("k", "a", "2"), effect)
	if err != nil || second.Replayed || !second.Expired || string(second.Body) == string(first.Body) ||
		b.counts.expired.Load() != 1 {
		t.Fatalf("after it: %+v, %v", second, err)
	}
	if again, err := b.Do(t.Context(), request("k", "a", "2"), effect); err != nil || !again.Replayed ||
		string(again.Body) != string(second.Body) {
		t.Fatalf("the new record: %+v, %v", again, err)
	}
}

// Of concurrent requests with an expired key, one runs.
func TestExpiredKeyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.Do(t.Context(), request("k", "a", "1"), effect); err != nil {
		t.Fatal(err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", 8*24*time.Hour, "expires_at")
	var wg sync.WaitGroup
	bodies := make([]string, 12)
	for i := range bodies {
		wg.Go(func() {
			answer, err := b.Do(t.Context(), request("k", "a", "1"), effect)
			if err != nil {
				t.Error(err)
			}
			bodies[i] = string(answer.Body)
		})
	}
	wg.Wait()
	for _, body := range bodies {
		if body != bodies[0] {
			t.Fatalf("answers differ: %v", bodies)
		}
	}
	if b.effects(t) != 2 {
		t.Fatalf("%d effects", b.effects(t))
	}
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, key := range []string{"old", "older"} {
		if _, err := b.Do(t.Context(), request(key), effect); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Age(t, b.db, "idempotency_keys", 8*24*time.Hour+time.Hour)
	if _, err := b.Do(t.Context(), request("young"), effect); err != nil {
		t.Fatal(err)
	}
	sweeps := idem.Sweeps(b.db, nil)
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if free, err := pgpool.LockRecords.Try(t.Context(), tx); !free || err != nil {
		t.Fatal(free, err)
	}
	if done := pgtest.Sweep(t, sweeps...); len(done) != 0 {
		t.Fatalf("while another node sweeps: %v", done)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"idempotency_keys": 2}, pgtest.Sweep(t, sweeps...)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	var logged, left int
	err = b.db.QueryRow(t.Context(), `
		SELECT (SELECT version FROM audit_log WHERE entity = 'record'), (SELECT count(*) FROM idempotency_keys)`).
		Scan(&logged, &left)
	if err != nil || logged != 2 || left != 1 {
		t.Fatalf("%d logged, %d left, %v", logged, left, err)
	}
}

// Row-level security: with the application's role a query without a WHERE sees and changes only the
// caller's records.
func TestRowLevelSecurity(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, caller := range []syntax.DID{"did:plc:alice", "did:plc:bob"} {
		req := request("k", "a", "1")
		req.Caller = caller
		if _, err := b.Do(t.Context(), req, effect); err != nil {
			t.Fatal(err)
		}
	}
	hostile := func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		var role string
		var seen int
		if err := tx.QueryRow(ctx,
			`SELECT current_user, count(*) FROM idempotency_keys WHERE true OR caller_did = ''`).Scan(&role, &seen); err != nil {
			return nil, err
		}
		if role != "mlsd_app" || seen != 2 { // the record of the first request and the one that is being written
			t.Errorf("as %s alice sees %d records", role, seen)
		}
		for _, sql := range []string{`UPDATE idempotency_keys SET response = 'stolen' WHERE caller_did <> 'did:plc:alice'`,
			`DELETE FROM idempotency_keys WHERE caller_did <> 'did:plc:alice'`} {
			tag, err := tx.Exec(ctx, sql)
			if err != nil || tag.RowsAffected() != 0 {
				t.Errorf("%s: %s, %v", sql, tag, err)
			}
		}
		nested, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, err = nested.Exec(ctx,
			`UPDATE idempotency_keys SET caller_did = 'did:plc:bob', key = 'planted' WHERE caller_did = 'did:plc:alice'`)
		if err == nil {
			t.Error("alice has made a record in bob's name")
		}
		return []byte("{}"), nested.Rollback(ctx)
	}
	if _, err := b.Do(t.Context(), request("l"), hostile); err != nil {
		t.Fatal(err)
	}
}
