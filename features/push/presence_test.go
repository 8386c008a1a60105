package push_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"mlsd/events"
	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
)

// node returns the presence of another node. It syncs only when the test says so.
func (b *bench) node() *events.Presence {
	b.t.Helper()
	p := events.NewPresence(b.db, slog.New(slog.NewTextHandler(b.t.Output(), nil)))
	b.sync(p)
	return p
}

// newConnectedBench returns a bench with a node to which bob's phone is connected.
func newConnectedBench(t *testing.T) (b *bench, here *events.Presence) {
	t.Helper()
	b = newBench(t)
	here = b.node()
	here.Connect(bob, "phone", true)
	b.sync(here)
	return b, here
}

func (b *bench) sync(nodes ...*events.Presence) {
	b.t.Helper()
	if !b.standing {
		// The stream has published everything.
		if _, err := b.db.Exec(b.t.Context(), `DELETE FROM outbox`); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, p := range nodes {
		if err := p.RunOnce(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

// pass lets time pass in which no node renews its lease.
func (b *bench) pass(d time.Duration) {
	b.t.Helper()
	b.passed.Add(int64(d))
	pgtest.Age(b.t, b.db, "push_jobs", d)
	pgtest.Age(b.t, b.db, "presence", d)
	pgtest.Age(b.t, b.db, "nodes", d)
	pgtest.Age(b.t, b.db, "outbox", d)
}

// live lets time pass in which these nodes renew their leases and the worker works.
func (b *bench) live(d time.Duration, nodes ...*events.Presence) {
	b.t.Helper()
	for ; d > 0; d -= events.SyncInterval {
		b.pass(min(d, events.SyncInterval))
		b.sync(nodes...)
		b.run()
	}
}

// called fails the test unless the phone was called this often since the last time.
func (b *bench) called(want int, when string) {
	b.t.Helper()
	if calls := b.phone.taken(); len(calls) != want {
		b.t.Fatalf("%s: %d calls instead of %d; %+v", when, len(calls), want, b.jobs())
	}
}

// TestNothingWasSent: while the stream stands still, no device gets a message over its connection.
func TestNothingWasSent(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.standing = true
	b.send("hello")
	b.run()
	b.live(70*time.Second, here)
	for _, j := range b.jobs() {
		if j.State == "done" && len(b.phone.taken()) == 0 {
			t.Errorf("the device has not got the message, and was not called: %+v", j)
		}
	}
	b.standing = false
	b.live(30*time.Second, here)
	if j := b.jobs()[0]; j.State != "done" {
		t.Errorf("the stream goes on, and the job does not: %+v", j)
	}
}

// outcomes counts jobs by outcome.
type outcomes struct {
	uncounted
	mu sync.Mutex
	n  map[string]int
}

// PushEnded implements push.Metrics.
func (o *outcomes) PushEnded(outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n[outcome]++
}

// G15: an outcome is counted after the COMMIT that stores it. If the COMMIT fails, the job is tried
// again, and counts once.
func TestOutcomeIsCountedAfterTheCommit(t *testing.T) {
	t.Parallel()
	ended := &outcomes{n: map[string]int{}}
	b := newBench(t, func(c *push.Config) { c.Metrics = ended })
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, idem.NSIDPush, failpoint.Error)
	b.send("hello")
	b.run()
	if j := b.jobs()[0]; j.State != "sending" || ended.n["done"] != 0 {
		t.Fatalf("after a failed COMMIT: %+v, counted %v", j, ended.n)
	}
	pgtest.Age(t, b.db, "idempotency_keys", time.Hour, "lease_expires_at")
	pgtest.Age(t, b.db, "push_jobs", time.Hour, "next_attempt_at")
	b.run()
	if j := b.jobs()[0]; j.State != "done" || ended.n["done"] != 1 {
		t.Errorf("after the COMMIT: %+v, counted %v", j, ended.n)
	}
}

// A connected device is not called, neither while its job is deferred nor after.
func TestConnectedDeviceIsNotCalled(t *testing.T) {
	t.Parallel()
	ended := &outcomes{n: map[string]int{}}
	b := newBench(t, func(c *push.Config) { c.Metrics = ended })
	here := b.node()
	here.Connect(bob, "phone", true)
	b.sync(here)
	for i := range 2 {
		b.send("hello")
		b.run()
		if j := b.jobs()[i]; j.State != "pending" || j.Wait < 40*time.Second || j.Wait > 45*time.Second {
			t.Fatalf("%+v", j)
		}
		b.live(35*time.Second, here)
		if j := b.jobs()[i]; j.State != "pending" {
			t.Fatalf("after 35 s: %+v", j)
		}
		b.live(15*time.Second, here)
		b.called(0, "connected")
		if j := b.jobs()[i]; j.State != "done" || j.Attempts != 0 || j.Error != "it was connected" ||
			ended.n["connected"] != i+1 {
			t.Fatalf("after 50 s: %+v, %v", j, ended.n)
		}
	}
	if n := b.count(`SELECT count(*) FROM audit_log WHERE (from_state, to_state, reason) = ('pending', 'done',
			'connected')`); n != 2 {
		t.Errorf("%d lines of the audit log", n)
	}
}

// A Welcome for a connected device is deferred too. A job that is pending already becomes a
// Welcome's.
func TestConnectedDeviceIsWelcome(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.send("hello")
	b.run()
	b.live(10*time.Second, here)
	if err := b.deposit(6, func() error { return nil }, "phone"); err != nil {
		t.Fatal(err)
	}
	b.run()
	if j := b.only(); j.State != "pending" || j.Reason != "welcome" || j.Wait < 40*time.Second {
		t.Fatalf("%+v", j)
	}
	b.live(50*time.Second, here)
	b.called(0, "connected")
	if j := b.only(); j.State != "done" {
		t.Fatalf("%+v", j)
	}
	b.exec(`DELETE FROM welcomes`)
}

// A device whose last connection ends is called at once. A device that is connected to another node
// is not.
func TestDeviceThatWentIsCalledAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, second := b.node(), b.node()
	first.Connect(bob, "phone", true)
	second.Connect(bob, "phone", true)
	b.sync(first, second)
	b.send("hello")
	b.run()
	first.Disconnect(bob, "phone", true)
	b.sync(first)
	b.run()
	b.called(0, "connected to the other node")
	second.Disconnect(bob, "phone", true)
	b.sync(second)
	b.run()
	b.called(1, "disconnected")
	b.send("more")
	b.run()
	b.called(1, "after it went")
}

// A device is called if only another device is connected, or a connection that names no device.
func TestOtherDevicesAreCalled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.register(push.Target{DID: bob, DeviceID: "tablet", Kind: push.KindWebhook, Address: b.phone.URL + "/tablet"})
	b.register(push.Target{DID: carol, DeviceID: "phone", Kind: push.KindWebhook, Address: b.phone.URL + "/carol"})
	here := b.node()
	here.Connect(bob, "phone", true)
	here.Connect(bob, "", true)
	here.Connect(carol, "", true)
	b.sync(here)
	b.send("hello")
	b.run()
	paths := map[string]int{}
	for _, c := range b.phone.taken() {
		paths[c.path]++
	}
	if len(paths) != 2 || paths["/tablet"] != 1 || paths["/carol"] != 1 {
		t.Fatalf("%v", paths)
	}
}

// A dead node does not count once its lease has lapsed, neither for new messages nor for deferred
// jobs.
func TestDeadNodeIsNotPresence(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.send("hello")
	b.run()
	b.pass(46 * time.Second)
	b.run()
	b.called(1, "deferred")
	b.send("more")
	b.run()
	b.called(1, "new")

	b.pass(2 * time.Minute)
	other := b.node()
	pgtest.Sweep(t, events.SweepNodes(b.db))
	if n := b.count(`SELECT count(*) FROM nodes`) + b.count(`SELECT count(*) FROM presence`); n != 1 {
		t.Fatalf("%d rows", n)
	}
	b.sync(here, other) // it is alive
	b.send("and more")
	b.run()
	b.live(50*time.Second, here, other)
	b.called(0, "back")
}

// Each message defers the job again. Even so a device whose node has died is called as soon as the
// lease has lapsed. Without further messages it is called within 45 s of the last message and the
// lease.
func TestPresenceHidesNothingLongerThanItsLease(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	for range 20 {
		b.send("hello")
		b.live(5*time.Second, here)
	}
	b.called(0, "connected")
	if j := b.only(); j.Wait < 30*time.Second {
		t.Fatalf("%+v", j)
	}
	for range 2 {
		b.pass(5 * time.Second)
		b.send("hello")
		b.run()
	}
	b.called(0, "within the lease")
	b.pass(6 * time.Second)
	b.send("hello")
	b.run()
	b.called(1, "after the lease")

	here = b.node()
	here.Connect(bob, "phone", true)
	b.sync(here)
	b.send("hello")
	b.live(40*time.Second, here) // then it dies
	b.pass(10 * time.Second)
	b.run()
	b.called(0, "it has possibly got the message")
	b.pass(6 * time.Second)
	b.run()
	b.called(1, "after the lease")
}

// A message that comes late in a deferral, before the node finds out that the connection is dead,
// is not lost.
func TestMessageDuringDeferral(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.send("first")
	b.run()
	b.live(40*time.Second, here) // it dies at the end of this time
	b.send("second")
	b.run()
	b.live(34*time.Second, here)
	b.called(0, "not found out yet")
	if j := b.only(); j.State != "pending" {
		t.Fatalf("%+v", j)
	}
	here.Disconnect(bob, "phone", true)
	b.sync(here)
	b.run()
	b.called(1, "found out")
}

// A connection at the time when a job is due does not prove that the device got the message. The
// connection can have begun too late, or its node cannot yet say that it was alive.
func TestLateConnection(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(here *events.Presence){
		"one after the other": func(here *events.Presence) {
			here.Disconnect(bob, "phone", true)
			here.Connect(bob, "phone", true)
		},
		"the older one ends": func(here *events.Presence) {
			here.Connect(bob, "phone", true)
			here.Disconnect(bob, "phone", true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, here := newConnectedBench(t)
			b.send("hello")
			b.run()
			b.live(30*time.Second, here)
			change(here)
			b.sync(here)
			b.run()
			b.called(0, "not due yet")
			b.live(20*time.Second, here)
			b.called(1, "due")
		})
	}
}

// A node that did not run for longer than its lease says nothing about its connections during that
// time.
func TestNodeThatSlept(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.send("hello")
	b.run()
	b.pass(50 * time.Second)
	b.sync(here)
	b.run()
	b.called(1, "it did not run")
}

// A due job is not ended while the transaction of a message that found it is open.
func TestEndConnectedDuringFanout(t *testing.T) {
	t.Parallel()
	b, here := newConnectedBench(t)
	b.send("first")
	if _, err := b.worker.FanOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		b.pass(5 * time.Second)
		b.sync(here)
	}
	b.send("second")
	resume := b.pause(failpoint.BeforeCommit, push.NSIDFanout,
		func() error { _, err := b.worker.FanOut(t.Context()); return err })
	if err := b.newWorker().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	resume()
	b.run()
	b.called(0, "deferred again")
	if j := b.only(); j.State != "pending" || j.Wait < 30*time.Second {
		t.Fatalf("%+v", j)
	}
}

// A connection that begins after a call has failed does not replace the call. The job that
// supersedes it is called.
func TestFailedCallIsNotForgotten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(503))
	b.send("first")
	b.run()
	b.called(1, "away")
	here := b.node()
	here.Connect(bob, "phone", true)
	b.sync(here)
	b.send("second")
	b.pass(2 * time.Second)
	b.run() // fails again, and the newer job supersedes it
	b.called(1, "the first again")
	b.phone.answers(nil)
	b.live(5*time.Second, here)
	b.called(1, "the second in its place")
}
