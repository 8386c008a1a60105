package limit

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pace is how fast the clients of these tests have to be.
var pace = Pace{Grace: 10 * time.Second, PerSecond: 64 << 10}

// A caller is limited by its own share, and all callers by the whole pool. Released memory can be
// reserved again.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Bound{Size: 10, Share: 6})
		take := func(caller string, n int64) *Reservation {
			t.Helper()
			r := &Reservation{}
			if err := m.Reserve(t.Context(), r, Client{Key: caller}, n, n); err != nil {
				t.Fatalf("%s takes %d: %v", caller, n, err)
			}
			return r
		}
		refused := func(caller string, own bool) {
			t.Helper()
			var refusal *RefusedError
			begun := time.Now()
			err := m.Reserve(t.Context(), &Reservation{}, Client{Key: caller}, 1, 1)
			if !errors.As(err, &refusal) || refusal.Own != own || time.Since(begun) != maxWait {
				t.Errorf("%s waits for %s: %v, want a refusal, own %t", caller, time.Since(begun), err, own)
			}
		}
		alice := take("alice", 6)
		refused("alice", true)
		bob := take("bob", 4)
		refused("carol", false)
		if err := alice.GrowSoon(t.Context(), 1); err == nil {
			t.Error("alice takes more than her share")
		}
		alice.Shrink(2)
		carol := take("carol", 4)
		alice.Shrink(5) // changes nothing: it has reserved less
		for _, r := range []*Reservation{alice, bob, carol, take("dave", 0), {}} {
			r.Release()
			r.Release()
		}
		if m.Used() != 0 || !m.TryReserve(&Reservation{}, Client{Key: "erin"}, 6, 6) {
			t.Errorf("not everything came back: %d", m.Used())
		}
	})
}

// G15: however many requests wait for memory, the pool looks for slow transfers ten times a second,
// without a goroutine of its own. It stops with the last request.
//
// It counts goroutines, so no other test may run beside it.
func TestWaitingRequestsCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Bound{Size: 1})
		var holds Reservation
		m.TryReserve(&holds, Client{Key: "holds"}, 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		before := runtime.NumGoroutine()
		var waiting sync.WaitGroup
		for i := range 50 {
			waiting.Go(func() { _ = m.Reserve(ctx, &Reservation{}, Client{Key: strconv.Itoa(i)}, 1, 1) })
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 50 {
			t.Errorf("%d goroutines for 50 requests", n)
		}
		checked := func() time.Time {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.checked
		}
		looks := map[time.Time]bool{}
		for range 20 {
			time.Sleep(checkSlowEvery / 2)
			looks[checked()] = true
		}
		if n := len(looks); n < 10 || n > 11 {
			t.Errorf("%d looks in a second", n)
		}
		cancel()
		waiting.Wait()
		last := checked()
		time.Sleep(time.Second)
		if checked() != last {
			t.Error("the pool looks for slow transfers for nobody")
		}
	})
}

// Large requests leave a part to small ones, of the whole and of their own caller's share. Slow
// small ones are not cut if only large ones wait for each other.
func TestLargeRequestsLeaveMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Bound{Size: 10, Share: 6}, Bound{Above: 1, Size: 6, Share: 4})
		try := func(caller string, most, n int64, want bool) *Reservation {
			t.Helper()
			r := &Reservation{}
			if got := m.TryReserve(r, Client{Key: caller}, most, n); got != want {
				t.Errorf("%s reserves %d of %d: %t, want %t", caller, n, most, got, want)
			}
			return r
		}
		large := try("alice", 5, 4, true)
		try("alice", 5, 1, false)
		small, end := try("alice", 1, 1, true), &deadline{}
		small.Begin(end.set, pace)
		other := try("bob", 5, 2, true)
		try("carol", 5, 1, false)
		try("carol", 1, 1, true)
		time.Sleep(2 * slowAfter)
		if err := m.Reserve(t.Context(), &Reservation{}, Client{Key: "carol"}, 5, 1); err == nil || end.cut() {
			t.Errorf("%v; a small request is cut: %t", err, end.cut())
		}
		large.Release()
		other.Release()
		try("dave", 6, 4, true)
		small.End(true)
	})
}

// deadline is the last deadline of a connection.
type deadline struct{ at atomic.Pointer[time.Time] }

func (d *deadline) set(t time.Time) error {
	d.at.Store(&t)
	return nil
}

func (d *deadline) get() time.Time { return *d.at.Load() }

func (d *deadline) cut() bool { return !d.get().IsZero() && d.get().Before(time.Now()) }

// H2, H3: if the memory is full, the slowest transfer of those who hold most is cut, and not the
// request that comes next. Quick ones are never cut.
func TestSlowestIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Bound{Size: 100, Share: 100})
		take := func(caller, address string) (*Reservation, *deadline) {
			r, d := &Reservation{}, &deadline{}
			if err := p.Reserve(t.Context(), r, Client{caller, address}, 20, 20); err != nil {
				t.Fatal(err)
			}
			r.Begin(d.set, pace)
			return r, d
		}
		stuck, stuckEnd := take("mallory", "192.0.2.1")
		slow, slowEnd := take("bob", "192.0.2.2")
		steady, steadyEnd := take("carol", "192.0.2.3")
		for range 4 {
			time.Sleep(slowAfter / 2)
			steady.Progress(100_000)
			slow.Progress(1_000)
		}
		_, newEnd := take("dave", "192.0.2.4")
		other, otherEnd := take("mallory", "192.0.2.4")
		go func() { // the connection of a transfer that is cut ends
			for !stuckEnd.cut() {
				time.Sleep(time.Millisecond)
			}
			stuck.End(false)
			stuck.Release()
		}()
		next := &Reservation{}
		if err := p.Reserve(t.Context(), next, Client{"erin", "192.0.2.5"}, 20, 20); err != nil {
			t.Fatalf("there is no memory for the next: %v", err)
		}
		if slowEnd.cut() || steadyEnd.cut() || newEnd.cut() || otherEnd.cut() {
			t.Errorf("cut: the slow one %t, the steady one %t, new ones %t, %t", slowEnd.cut(), steadyEnd.cut(), newEnd.cut(),
				otherEnd.cut())
		}
		other.End(true)
		if !otherEnd.get().IsZero() {
			t.Error("a deadline stays after the transfer")
		}
	})
}

// A download waits for its store after each piece. A slow one is cut nevertheless, and a quick one is
// not.
func TestPausesDoNotHideSlowTransfers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Bound{Size: 100, Share: 100})
		take := func(address string) (*Reservation, *deadline) {
			r, d := &Reservation{}, &deadline{}
			if err := p.Reserve(t.Context(), r, Client{address, address}, 20, 20); err != nil {
				t.Fatal(err)
			}
			r.Begin(d.set, pace)
			return r, d
		}
		slow, slowEnd := take("192.0.2.1")
		quick, quickEnd := take("192.0.2.2")
		for range 40 {
			time.Sleep(slowAfter / 10)
			for r, n := range map[*Reservation]int64{slow: 10, quick: 100_000} {
				r.Progress(n)
				resume := r.Pause()
				time.Sleep(time.Millisecond)
				resume()
			}
		}
		// The first look at the transfers may come before the request waits, the second does not.
		soon, cancel := context.WithTimeout(t.Context(), 3*checkSlowEvery/2)
		defer cancel()
		if err := p.Reserve(soon, &Reservation{}, Client{Key: "dave"}, 80, 80); err == nil {
			t.Error("nothing is reserved by transfers")
		}
		if !slowEnd.cut() || quickEnd.cut() {
			t.Errorf("cut: the slow one %t, the quick one %t", slowEnd.cut(), quickEnd.cut())
		}
		paused, _ := take("192.0.2.3")
		resume := paused.Pause()
		for _, r := range []*Reservation{paused, slow, quick} { // it ends while it pauses
			r.End(true)
			r.Progress(1)
		}
		resume()
		if p.oldest != nil || p.newest != nil {
			t.Error("a transfer that has ended is in the list")
		}
	})
}

// H3: slow transfers of one address hold a part of the memory, however many callers it has. Those
// of others, and quick ones, are left alone.
func TestSlowShareOfAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Bound{Size: 100, Share: 100})
		var ends []*deadline
		for i := range 6 {
			r, d := &Reservation{}, &deadline{}
			address := "192.0.2.1"
			if i == 5 {
				address = "192.0.2.2"
			}
			if err := p.Reserve(t.Context(), r, Client{string(rune('a' + i)), address}, 10, 10); err != nil {
				t.Fatal(err)
			}
			r.Begin(d.set, pace)
			ends = append(ends, d)
		}
		cut := func() (n int) {
			for _, d := range ends[:5] {
				if d.cut() {
					n++
				}
			}
			return n
		}
		p.begin(&Reservation{}, Client{}, 1)
		if cut() != 0 {
			t.Fatalf("%d were cut before they were slow", cut())
		}
		time.Sleep(slowAfter)
		p.begin(&Reservation{}, Client{}, 1)
		if cut() != 3 || ends[5].cut() {
			t.Errorf("%d of the address that holds 50 of 100 were cut, want 3; of another address: %t", cut(), ends[5].cut())
		}
	})
}

// A client that sends nothing loses the connection after the grace. A quick start earns it no longer
// pause.
func TestTransferPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, r, d := NewMemory(Bound{Size: 1000, Share: 1000}), &Reservation{}, &deadline{}
		if err := p.Reserve(t.Context(), r, Client{Key: "alice"}, 1, 1); err != nil {
			t.Fatal(err)
		}
		r.Begin(d.set, Pace{Grace: 5 * time.Second, PerSecond: 1000})
		left := func(want time.Duration) {
			t.Helper()
			if got := time.Until(d.get()); got != want {
				t.Errorf("%s are left, want %s", got, want)
			}
		}
		left(5 * time.Second)
		time.Sleep(3 * time.Second)
		r.Progress(1000)
		left(3 * time.Second)
		r.Progress(100_000)
		left(5 * time.Second)
		resume := r.Pause()
		time.Sleep(time.Minute)
		resume()
		left(5 * time.Second)
	})
}
