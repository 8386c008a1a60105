package push_test

import (
	"errors"
	"net/http"
	"testing"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/messages"
	"mlsd/push"
)

// pause stops the next transaction of method at point. It returns once do has come there; resume lets it go on and waits for it.
func (b *bench) pause(point, method string, do func() error) (resume func()) {
	b.t.Helper()
	if err := b.faults.Arm(point, method, failpoint.Pause); err != nil {
		b.t.Fatal(err)
	}
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

// A message that is committed while the device is called makes a call of its own: the one under way may have been too early for it.
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
	if err := b.newWorker().RunOnce(t.Context()); err != nil { // makes the job, and leaves it until the call has ended
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

// A message that finds its convo's row about to be worked off waits and leaves a new one.
func TestMessageDuringFanout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("first")
	resume := b.pause(failpoint.BeforeCommit, push.NSIDFanout, func() error { return b.worker.FanOut(t.Context()) })
	sent := make(chan error, 1)
	go func() {
		_, err := b.log.Append(t.Context(), []messages.Draft{b.draft("second")})
		sent <- err
	}()
	b.waiting(1)
	resume()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	b.run()
	if n := b.count(`SELECT count(*) FROM push_convos`); n != 0 {
		t.Fatalf("%d rows are left", n)
	}
	if calls := b.phone.taken(); len(calls) != 1 { // the job was still pending: it stands for both
		t.Fatalf("%d calls", len(calls))
	}
}

// A row that a message has found is not worked off before that message is committed: the device would look too early.
func TestFanoutDuringCommit(t *testing.T) {
	t.Parallel()
	for _, texts := range [][]string{{"second"}, {"second", "third"}} { // a lone message is written by another statement
		fanOutDuringCommit(t, texts)
	}
}

func fanOutDuringCommit(t *testing.T, texts []string) {
	t.Helper()
	b := newBench(t)
	b.send("first")
	resume := b.pause(failpoint.BeforeCommit, messages.NSID, func() error {
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

// A pending job that a Welcome has found is not sent before the Welcome is committed.
func TestJobDuringDeposit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("first")
	if err := b.worker.FanOut(t.Context()); err != nil {
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

// A call that failed and may have been heard takes in nothing more: its key would be known. The device's next job takes its place and its
// back-off.
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
	if jobs[0].State != "done" || jobs[0].Attempts != 2 || jobs[1].State != "pending" || jobs[1].Attempts != 2 || jobs[1].Wait <= 0 {
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

// lost-fanout: the server dies after the message's commit. Whoever comes next finds what was left and sends it.
func TestLostFanout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.faults.Arm(failpoint.AfterCommit, messages.NSID, failpoint.Error); err != nil {
		t.Fatal(err)
	}
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

// A worker that fails at any step leaves a job that another takes over, and the receiver can tell the calls by their key.
func TestWorkerFails(t *testing.T) {
	t.Parallel()
	for point, calls := range map[string]int{
		failpoint.BeforeReserve: 1, failpoint.AfterReserve: 1, failpoint.AfterWork: 2, failpoint.BeforeCommit: 2, failpoint.AfterCommit: 1,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if err := b.faults.Arm(point, idem.NSIDPush, failpoint.Error); err != nil {
				t.Fatal(err)
			}
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

// A worker that was only thought dead ends nothing and puts nothing off: neither row is its own any more.
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
			if n := b.count(`SELECT fence FROM idempotency_keys WHERE nsid = $1 AND state = 'completed'`, idem.NSIDPush); n != 2 {
				t.Fatalf("fence %d", n)
			}
		})
	}
}

// A job that is due while its lease is still held waits for the lease.
func TestLeaseStillHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.faults.Arm(failpoint.AfterReserve, idem.NSIDPush, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	b.send("hello")
	b.run()
	b.due()
	b.run()
	if j := b.only(); len(b.phone.taken()) > 0 || j.State != "sending" || j.Wait <= 0 {
		t.Fatalf("%+v", j)
	}
}
