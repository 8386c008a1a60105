package outgoing

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Now()} }

// Bounds of the tests.
const (
	perCaller = 4
	perHost   = 4
	unproven  = 16
	failures  = 5
	firstOpen = 5 * time.Second
	lastOpen  = 5 * time.Minute
)

func webhooks() *Pool {
	return &Pool{Name: "webhooks", Size: 32, Unproven: unproven, Failures: failures, FirstOpen: firstOpen,
		LastOpen: lastOpen, Timeout: 3 * time.Second}
}

// services are called one at a time until they answer, and are left alone after each failure.
func services() *Pool {
	return &Pool{Name: "services", Size: 32, Unproven: unproven, Trial: 1, Failures: 1, FirstOpen: time.Second,
		LastOpen: lastOpen, Timeout: 12 * time.Second}
}

// acquire fails the test unless the verdict is want, and returns the place.
func acquire(t *testing.T, s *Places, c Call, want Verdict) Place {
	t.Helper()
	p, got, _ := s.Acquire(c)
	if got != want {
		t.Fatalf("%s of %s to %s: verdict %d, want %d", c.Pool.Name, c.Caller, c.Host, got, want)
	}
	return p
}

// H6: the calls of one account, of one host, and to hosts that were never called are bounded. A
// host that answers has a place while hosts that hang have taken all that they may have.
func TestPlaces(t *testing.T) {
	t.Parallel()
	s, pool := NewPlaces(newClock().now, perCaller, perHost), webhooks()
	chosen := &Pool{Name: "chosen", Size: 32, Failures: failures}
	good := acquire(t, s, Call{pool, "did:plc:alice", "good.example"}, Admitted)
	good.Report(Succeeded)
	good.Release()
	for i := range unproven {
		acquire(t, s, Call{pool, fmt.Sprintf("did:plc:m%d", i/perCaller), fmt.Sprintf("m%d.example", i)}, Admitted)
	}
	acquire(t, s, Call{pool, "did:plc:another", "another.example"}, Busy)
	for range perHost {
		acquire(t, s, Call{pool, "did:plc:alice", "good.example"}, Admitted)
	}
	acquire(t, s, Call{pool, "did:plc:bob", "good.example"}, Busy)
	acquire(t, s, Call{chosen, "did:plc:bob", ""}, Admitted)
	acquire(t, s, Call{chosen, "did:plc:alice", ""}, Busy)
	for range chosen.Size - 1 {
		acquire(t, s, Call{chosen, "", ""}, Admitted)
	}
	acquire(t, s, Call{chosen, "", ""}, Full)
	if !s.Exhausted(chosen) || s.Exhausted(pool) {
		t.Error("the wrong pool is exhausted")
	}
}

// H6: a circuit opens after failures in a row, is probed by one call at a time, and stays open
// longer each time the probe fails. It closes when a probe succeeds.
func TestCircuit(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, host := NewPlaces(c.now, perCaller, perHost), Call{webhooks(), "did:plc:alice", "m.example"}
	call := func(r Result) {
		t.Helper()
		p := acquire(t, s, host, Admitted)
		p.Report(r)
		p.Release()
	}
	for range failures - 1 {
		call(Failed)
	}
	call(Succeeded)
	for range failures - 1 {
		call(Failed)
	}
	late := acquire(t, s, host, Admitted)
	call(Failed)
	for _, wait := range []time.Duration{firstOpen, 2 * firstOpen, 4 * firstOpen} {
		acquire(t, s, host, Open)
		late.Report(Failed) // it was running before, and does not count
		c.at = c.at.Add(wait - time.Millisecond)
		acquire(t, s, host, Open)
		c.at = c.at.Add(time.Millisecond)
		probe := acquire(t, s, host, Admitted)
		acquire(t, s, host, Open)
		probe.Report(Failed)
		probe.Release()
	}
	c.at = c.at.Add(lastOpen)
	gone := acquire(t, s, host, Admitted) // a probe that makes no call
	gone.Release()
	call(Succeeded)
	acquire(t, s, host, Admitted)
	acquire(t, s, host, Admitted)
}

// A service that was never called, or whose last call failed, has one place, and pauses that double.
// One that answers has more.
func TestTrial(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, a := NewPlaces(c.now, 0, perHost), Call{Pool: services(), Host: "did:web:a"}
	places := func() (n int) {
		for {
			p, v, _ := s.Acquire(a)
			if v != Admitted {
				return n
			}
			defer p.Release()
			n++
		}
	}
	end := func(r Result) {
		t.Helper()
		p := acquire(t, s, a, Admitted)
		p.Report(r)
		p.Release()
	}
	want := func(n int, proven, paused bool) {
		t.Helper()
		of, left := s.Hosts(a.Pool)
		if got := places(); got != n || slices.Contains(of, a.Host) != proven || slices.Contains(left, a.Host) != paused {
			t.Errorf("%d places, proven %q, paused %q; want %d, %t, %t", got, of, left, n, proven, paused)
		}
	}
	want(1, false, false)
	end(Succeeded)
	want(perHost, true, false)
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		end(Failed)
		c.at = c.at.Add(pause - 1)
		want(0, false, true)
		c.at = c.at.Add(1)
		want(1, false, false)
	}
	running := acquire(t, s, a, Admitted)
	want(0, false, true)
	running.Release()
	for range 20 {
		end(Failed)
		c.at = c.at.Add(lastOpen)
	}
	end(Succeeded)
	want(perHost, true, false)
	if n := s.pools[a.Pool] + s.unproven[a.Pool] + len(s.hosts); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Services that do not answer cannot take all places.
func TestManySilentHosts(t *testing.T) {
	t.Parallel()
	s, pool := NewPlaces(newClock().now, 0, perHost), services()
	well := acquire(t, s, Call{Pool: pool, Host: "did:web:well"}, Admitted)
	well.Report(Succeeded)
	well.Release()
	silent := 0
	for i := range pool.Size {
		if _, v, _ := s.Acquire(Call{Pool: pool, Host: fmt.Sprint("did:web:silent", i)}); v == Admitted {
			silent++
		}
	}
	if silent != unproven {
		t.Errorf("%d silent ones have places, want %d", silent, unproven)
	}
	acquire(t, s, Call{Pool: pool, Host: "did:web:well"}, Admitted)
}

// H6: what outsiders make a node remember is bounded.
func TestPlacesForget(t *testing.T) {
	t.Parallel()
	s := NewPlaces(newClock().now, perCaller, perHost)
	for _, pool := range []*Pool{webhooks(), services()} {
		for i := range maxRemembered + 100 {
			p := acquire(t, s, Call{pool, fmt.Sprintf("did:plc:m%d", i), fmt.Sprintf("m%d.example", i)}, Admitted)
			p.Report(Failed)
			p.Release()
		}
		if s.circuits.Len() != maxRemembered || len(s.callers)+len(s.hosts)+s.unproven[pool] != 0 {
			t.Errorf("%d circuits, %d callers, %d hosts", s.circuits.Len(), len(s.callers), len(s.hosts))
		}
	}
}
