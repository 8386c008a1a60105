package push_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// pause runs do, and returns when it has reached the failpoint. resume lets do continue and waits
// for it.
func (b *bench) pause(point, method string, do func() error) (resume func()) {
	b.t.Helper()
	failpointtest.Arm(b.t, b.faults, point, method, failpoint.Pause)
	reached, ended := b.faults.Reached(point, method), make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case <-reached:
	case err := <-ended:
		b.t.Fatalf("it has ended before %s: %v", point, err)
	}
	return func() {
		b.t.Helper()
		b.faults.Resume(point, method)
		if err := <-ended; err != nil {
			b.t.Fatal(err)
		}
	}
}

// A message that is committed during a call makes another call: the device possibly looked before
// the commit.
func TestMessageDuringCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	called, goOn := make(chan struct{}), make(chan struct{})
	b.phone.answers(func(http.ResponseWriter, *http.Request) {
		close(called)
		<-goOn
	})
	b.send("first")
	first := make(chan error, 1)
	go func() { first <- b.worker.RunOnce(t.Context()) }()
	<-called
	b.phone.answers(nil)
	b.send("second")
	// Another worker makes the job, and does not send it during the call.
	if err := b.newWorker().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if jobs := b.jobs(); len(jobs) != 2 || jobs[0].State != "sending" || jobs[1].State != "pending" {
		t.Fatalf("%+v", jobs)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	b.run()
	calls := b.phone.taken()
	if len(calls) != 2 || calls[0].header.Get("Idempotency-Key") == calls[1].header.Get("Idempotency-Key") {
		t.Fatalf("%d calls", len(calls))
	}
}

// A message that finds the row of its convo locked by the fan-out waits, and inserts a new row.
func TestMessageDuringFanout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("first")
	resume := b.pause(failpoint.BeforeCommit, push.NSIDFanout,
		func() error { _, err := b.worker.FanOut(t.Context()); return err })
	sent := make(chan error, 1)
	go func() {
		_, err := b.log.Append(t.Context(), []messages.Draft{b.draft("second")})
		sent <- err
	}()
	pgtest.AwaitLockWaits(b.t, b.db, 1)
	resume()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	b.run()
	if n := b.count(`SELECT count(*) FROM push_convos`); n != 0 {
		t.Fatalf("%d rows are left", n)
	}
	if calls := b.phone.taken(); len(calls) != 1 { // the pending job stands for both
		t.Fatalf("%d calls", len(calls))
	}
}

// The fan-out does not take a row that an open transaction of a message has found: the call would
// come before the commit.
func TestFanoutDuringCommit(t *testing.T) {
	t.Parallel()
	// One message in the transaction, and two.
	for _, texts := range [][]string{{"second"}, {"second", "third"}} {
		fanOutDuringCommit(t, texts)
	}
}

func fanOutDuringCommit(t *testing.T, texts []string) {
	t.Helper()
	b := newBench(t)
	b.send("first")
	resume := b.pause(failpoint.BeforeCommit, nsid.SendMessage, func() error {
		var drafts []messages.Draft
		for _, text := range texts {
			drafts = append(drafts, b.draft(text))
		}
		_, err := b.log.Append(t.Context(), drafts)
		return err
	})
	b.run()
	early := len(b.phone.taken())
	resume()
	b.run()
	if late := len(b.phone.taken()); late != 1 {
		t.Fatalf("%d calls before the commit of %d and %d after it", early, len(texts), late)
	}
}

// A pending job is not sent while an open transaction of a Welcome has found it.
func TestJobDuringDeposit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("first")
	if _, err := b.worker.FanOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := b.deposit(6, func() error {
		if err := b.worker.RunOnce(t.Context()); err != nil {
			return err
		}
		if calls := b.phone.taken(); len(calls) > 0 {
			return errors.New("sent before the Welcome's commit")
		}
		return nil
	}, "phone")
	if err != nil {
		t.Fatal(err)
	}
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	b.exec(`DELETE FROM welcomes`)
}

// A failed call takes over no new message, because the receiver can know its key already. The
// device's next job supersedes it and takes over its delay.
func TestNewerJobSupersedes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(http.StatusInternalServerError))
	b.send("first")
	b.run()
	b.send("second")
	b.run()
	if jobs := b.jobs(); len(jobs) != 2 || jobs[1].State != "pending" {
		t.Fatalf("%+v", jobs)
	}
	b.due()
	b.run()
	jobs := b.jobs()
	if jobs[0].State != "done" || jobs[0].Attempts != 2 || jobs[1].State != "pending" || jobs[1].Attempts != 2 ||
		jobs[1].Wait <= 0 {
		t.Fatalf("%+v", jobs)
	}
	b.phone.answers(nil)
	b.phone.taken()
	b.due()
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 || calls[0].header.Get("Idempotency-Key") != "mlsd-"+jobs[1].ID.String() {
		t.Fatalf("%d calls", len(calls))
	}
}

// A node that stops during a job's last attempt leaves a job that is called again. A newer job takes
// over the attempts, and is called too.
func TestStopDuringLastAttempt(t *testing.T) {
	t.Parallel()
	for name, newer := range map[string]bool{"a newer job waits": true, "no newer job": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.phone.answers(status(http.StatusBadGateway))
			b.send("first")
			for range 9 {
				b.run()
				b.due()
			}
			called := make(chan struct{})
			b.phone.answers(func(_ http.ResponseWriter, r *http.Request) {
				close(called)
				<-r.Context().Done()
			})
			ctx, stop := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- b.worker.RunOnce(ctx) }()
			<-called
			if newer {
				b.send("second")
				if err := b.newWorker().RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			if calls := b.phone.taken(); len(calls) != 10 {
				t.Fatalf("%d calls before the stop", len(calls))
			}
			b.phone.answers(nil)
			b.worker = b.newWorker()
			b.due()
			b.run()
			jobs := b.jobs()
			last := jobs[len(jobs)-1]
			calls := b.phone.taken()
			if len(calls) != 1 || calls[0].header.Get("Idempotency-Key") != "mlsd-"+last.ID.String() ||
				last.State != "done" || last.Attempts != 10 || (len(jobs) == 2) != newer {
				t.Fatalf("%d calls, %+v", len(calls), jobs)
			}
		})
	}
}

// A dropped job that cannot be ended at once has more attempts than a job can have. The newer job
// that supersedes it is called.
func TestNewerJobOfDroppedJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(http.StatusInternalServerError))
	b.send("first")
	b.run()
	first := b.only()
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error { return push.Drop(t.Context(), tx, bob, first.ID) })
	if err != nil {
		t.Fatal(err)
	}
	b.send("second")
	b.phone.taken()
	b.due()
	// The look-up fails, as without the database.
	b.worker = b.newWorker(func(c *push.Config) {
		c.Withheld = func(context.Context, []syntax.DID) ([]syntax.DID, error) { return nil, errors.New("no database") }
	})
	b.run()
	if jobs := b.jobs(); len(jobs) != 2 || jobs[0].State != "done" || jobs[1].State != "pending" {
		t.Fatalf("%+v", jobs)
	}
	b.phone.answers(nil)
	b.worker = b.newWorker()
	b.due()
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls, %+v", len(calls), b.jobs())
	}
}

// lost-fanout: the server stops after the commit of a message. Another worker makes the call.
func TestLostFanout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	failpointtest.Arm(t, b.faults, failpoint.AfterCommit, nsid.SendMessage, failpoint.Error)
	if _, err := b.log.Append(t.Context(), []messages.Draft{b.draft("hello")}); err != nil {
		t.Fatal(err)
	}
	if err := b.newWorker().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
}

// A worker that fails at any step leaves a job that another worker takes. All calls have the same
// key.
func TestWorkerFails(t *testing.T) {
	t.Parallel()
	for point, calls := range map[string]int{
		failpoint.BeforeReserve: 1, failpoint.AfterReserve: 1, failpoint.AfterWork: 2, failpoint.BeforeCommit: 2,
		failpoint.AfterCommit: 1,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			failpointtest.Arm(t, b.faults, point, idem.NSIDPush, failpoint.Error)
			b.send("hello")
			b.run()
			b.lapse()
			b.worker = b.newWorker()
			b.run()
			got, keys := b.phone.taken(), map[string]bool{}
			for _, c := range got {
				keys[c.header.Get("Idempotency-Key")] = true
			}
			if j := b.only(); len(got) != calls || len(keys) != 1 || j.State != "done" {
				t.Fatalf("%d calls with %d keys, %+v", len(got), len(keys), j)
			}
		})
	}
}

// A worker that continues after its lease has lapsed neither ends nor postpones the job. Another
// worker has taken it.
func TestZombieWorker(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"it succeeds": 200, "it fails": 500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			called, goOn := make(chan struct{}), make(chan struct{})
			b.phone.answers(func(rw http.ResponseWriter, _ *http.Request) {
				close(called)
				<-goOn
				rw.WriteHeader(code)
			})
			b.send("hello")
			zombie := make(chan error, 1)
			go func() { zombie <- b.worker.RunOnce(t.Context()) }()
			<-called
			b.phone.answers(nil)
			b.lapse()
			if err := b.newWorker().RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := b.only()
			close(goOn)
			if err := <-zombie; err != nil {
				t.Fatal(err)
			}
			after := b.only()
			before.Wait, after.Wait = 0, 0
			if before.State != "done" || after != before {
				t.Fatalf("before %+v, after %+v", before, after)
			}
			if n := b.count(`SELECT fence FROM idempotency_keys WHERE nsid = $1 AND state = 'completed'`,
				idem.NSIDPush); n != 2 {
				t.Fatalf("fence %d", n)
			}
		})
	}
}

// A job that is due before its lease has lapsed waits for the lease.
func TestLeaseNotLapsed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	failpointtest.Arm(t, b.faults, failpoint.AfterReserve, idem.NSIDPush, failpoint.Error)
	b.send("hello")
	b.run()
	b.due()
	b.run()
	if j := b.only(); len(b.phone.taken()) > 0 || j.State != "sending" || j.Wait <= 0 {
		t.Fatalf("%+v", j)
	}
}
