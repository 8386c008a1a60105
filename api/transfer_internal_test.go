package api

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

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
		p := newMemoryPool(100, 100)
		take := func(caller, address string) (*reservation, *deadline) {
			r, d := &reservation{}, &deadline{}
			if err := p.reserve(t.Context(), r, caller, address, 20); err != nil {
				t.Fatal(err)
			}
			r.begin(d.set, downloadPace)
			return r, d
		}
		stuck, stuckEnd := take("mallory", "192.0.2.1")
		slow, slowEnd := take("bob", "192.0.2.2")
		steady, steadyEnd := take("carol", "192.0.2.3")
		for range 4 {
			time.Sleep(slowAfter / 2)
			steady.progress(100_000)
			slow.progress(1_000)
		}
		_, newEnd := take("dave", "192.0.2.4")
		other, otherEnd := take("mallory", "192.0.2.4")
		go func() { // the connection of a transfer that is cut ends
			for !stuckEnd.cut() {
				time.Sleep(time.Millisecond)
			}
			stuck.end(false)
			stuck.release()
		}()
		next := &reservation{}
		if err := p.reserve(t.Context(), next, "erin", "192.0.2.5", 20); err != nil {
			t.Fatalf("there is no memory for the next: %v", err)
		}
		if slowEnd.cut() || steadyEnd.cut() || newEnd.cut() || otherEnd.cut() {
			t.Errorf("cut: the slow one %t, the steady one %t, new ones %t, %t", slowEnd.cut(), steadyEnd.cut(), newEnd.cut(), otherEnd.cut())
		}
		other.end(true)
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
		p := newMemoryPool(100, 100)
		take := func(address string) (*reservation, *deadline) {
			r, d := &reservation{}, &deadline{}
			if err := p.reserve(t.Context(), r, address, address, 20); err != nil {
				t.Fatal(err)
			}
			r.begin(d.set, downloadPace)
			return r, d
		}
		slow, slowEnd := take("192.0.2.1")
		quick, quickEnd := take("192.0.2.2")
		for range 40 {
			time.Sleep(slowAfter / 10)
			for r, n := range map[*reservation]int64{slow: 10, quick: 100_000} {
				r.progress(n)
				resume := r.pause()
				time.Sleep(time.Millisecond)
				resume()
			}
		}
		p.mu.Lock()
		p.cutSlow(time.Now(), 20)
		p.mu.Unlock()
		if !slowEnd.cut() || quickEnd.cut() {
			t.Errorf("cut: the slow one %t, the quick one %t", slowEnd.cut(), quickEnd.cut())
		}
		paused, _ := take("192.0.2.3")
		resume := paused.pause()
		for _, r := range []*reservation{paused, slow, quick} { // it ends while it pauses
			r.end(true)
			r.progress(1)
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
		p := newMemoryPool(100, 100)
		var ends []*deadline
		for i := range 6 {
			r, d := &reservation{}, &deadline{}
			address := "192.0.2.1"
			if i == 5 {
				address = "192.0.2.2"
			}
			if err := p.reserve(t.Context(), r, string(rune('a'+i)), address, 10); err != nil {
				t.Fatal(err)
			}
			r.begin(d.set, uploadPace)
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
		p.releaseShare(p.touch("x"))
		if cut() != 0 {
			t.Fatalf("%d were cut before they were slow", cut())
		}
		time.Sleep(slowAfter)
		p.releaseShare(p.touch("x"))
		if cut() != 3 || ends[5].cut() {
			t.Errorf("%d of the address that holds 50 of 100 were cut, want 3; of another address: %t", cut(), ends[5].cut())
		}
	})
}

// touch makes the pool look for slow transfers.
func (p *memoryPool) touch(caller string) string {
	p.acquireShare(caller)
	return caller
}

// A client that sends nothing loses the connection after the grace. A quick start earns it no longer
// pause.
func TestTransferPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, r, d := newMemoryPool(1000, 1000), &reservation{}, &deadline{}
		if err := p.reserve(t.Context(), r, "alice", "", 1); err != nil {
			t.Fatal(err)
		}
		r.begin(d.set, transferPace{grace: 5 * time.Second, perSecond: 1000})
		left := func(want time.Duration) {
			t.Helper()
			if got := time.Until(d.get()); got != want {
				t.Errorf("%s are left, want %s", got, want)
			}
		}
		left(5 * time.Second)
		time.Sleep(3 * time.Second)
		r.progress(1000)
		left(3 * time.Second)
		r.progress(100_000)
		left(5 * time.Second)
		resume := r.pause()
		time.Sleep(time.Minute)
		resume()
		left(5 * time.Second)
	})
}

// H5: of one caller, and of one address, only so many openings wait. Others are not refused for it.
func TestWaitingOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &openings{rate: rate.NewLimiter(10, 1), perAddress: 20, waiting: map[string]int{}}
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		wait := func(did, address string, n int) (refused int) {
			results := make(chan error, n)
			for range n {
				go func() { results <- o.wait(ctx, did, address) }()
			}
			synctest.Wait()
			for range len(results) {
				if err := <-results; errors.As(err, new(limited)) {
					refused++
				}
			}
			return refused
		}
		wait("did:plc:zero", "192.0.2.9", 1) // takes the one that need not wait
		if n := wait("did:plc:mallory", "192.0.2.1", 20); n != 20-maxOpeningsOfDID {
			t.Errorf("%d of a caller's 20 are refused, want %d", n, 20-maxOpeningsOfDID)
		}
		if n := wait("did:plc:oscar", "192.0.2.1", 10); n != 10-(20-maxOpeningsOfDID) {
			t.Errorf("%d of another's 10 at the same address are refused, want %d", n, 10-(20-maxOpeningsOfDID))
		}
		if n := wait("did:plc:alice", "192.0.2.2", 1); n != 0 {
			t.Error("an honest caller is refused")
		}
		hangUp()
		synctest.Wait()
		if len(o.waiting) != 0 {
			t.Errorf("they have hung up, and still wait: %v", o.waiting)
		}
	})
}
