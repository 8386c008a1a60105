package limit_test

import (
	"testing"
	"time"

	"mlsd/internal/limit"
)

// A bucket holds its burst at first, and gains units with time. Taking too much takes nothing.
func TestBuckets(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b, rate := limit.NewBuckets[string](8, func() time.Time { return now }), limit.Rate{PerSecond: 2, Burst: 10}
	take := func(units int, want bool, left float64) {
		t.Helper()
		if level, ok := b.Take("alice", rate, units); ok != want || level.Left != left {
			t.Errorf("take %d: %t, %v left; want %t, %v", units, ok, level.Left, want, left)
		}
	}
	take(8, true, 2)
	take(3, false, 2)
	now = now.Add(time.Second)
	take(3, true, 1)
	if wait := b.Level("alice", rate).Wait(4); wait != 3*time.Second/2 {
		t.Errorf("4 units are there after %s, want 1.5s", wait)
	}
	now = now.Add(time.Hour)
	take(11, true, 0) // more than the burst: all that there is
	b.Give("alice", rate, 20)
	take(10, true, 0)
	now = now.Add(-time.Minute) // a clock that goes back
	take(1, false, 0)
	if level := b.Level("bob", rate); level.Left != 10 {
		t.Errorf("another key has %v left", level.Left)
	}
}

// A charge can make a debt, of a whole bucket at most.
func TestBucketsDebt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b, rate := limit.NewBuckets[string](8, func() time.Time { return now }), limit.Rate{PerSecond: 2, Burst: 10}
	for _, want := range []float64{-2, -10} {
		if level := b.Charge("alice", rate, 12); level.Left != want {
			t.Errorf("%v left, want %v", level.Left, want)
		}
	}
	now = now.Add(5 * time.Second)
	if _, ok := b.Take("alice", rate, 1); ok {
		t.Error("a bucket without units gives one")
	}
}

// A bucket whose rate changes is full, and so is one that was forgotten. The number of keys is
// bounded.
func TestBucketsForget(t *testing.T) {
	t.Parallel()
	b, rate := limit.NewBuckets[int](2, time.Now), limit.Rate{PerSecond: 1e-9, Burst: 3}
	left := func(key int, rate limit.Rate) int { return int(b.Charge(key, rate, 1).Left + 0.5) }
	if left(1, rate) != 2 || left(1, rate) != 1 {
		t.Error("two units were charged")
	}
	rate.Burst = 5
	if n := left(1, rate); n != 4 {
		t.Errorf("after a change %d units are left, want 4", n)
	}
	left(2, rate)
	left(3, rate)
	if n := left(1, rate); n != 4 || b.Len() != 2 {
		t.Errorf("%d keys are remembered; the forgotten one has %d units left", b.Len(), n)
	}
}
