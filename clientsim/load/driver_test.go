package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Requests for which no lane is free are left out, and Run returns after the last call.
func TestFullLanesLeaveOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond) // no request is due at the end
		defer cancel()
		began, calls := time.Now(), make(chan int, 100)
		var left []int
		d := Driver{Rate: 10, Lanes: 1, Full: func(r Request) { left = append(left, r.I) }}
		d.Run(ctx, func(r Request) {
			calls <- r.I
			time.Sleep(350 * time.Millisecond)
		})
		close(calls)
		var got []int
		for i := range calls {
			got = append(got, i)
		}
		if diff := cmp.Diff([]int{0, 4, 8}, got); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if want := []int{1, 2, 3, 5, 6, 7, 9}; !slices.Equal(left, want) {
			t.Errorf("left out %v, want %v", left, want)
		}
		if took := time.Since(began); took != 1150*time.Millisecond {
			t.Errorf("it returned after %s, want 1.15s", took)
		}
	})
}

// Requests become due while a server does not answer. All of them are made, and their latency
// counts from when they were due. Otherwise the measurement would leave out the waiting.
func TestLatencyCountsFromWhenARequestWasDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, all, stall = 100, 100, 500 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), all*time.Second/rate-time.Millisecond)
		defer cancel()
		count := NewCounter()
		d := Driver{Rate: rate, Lanes: 1, Count: func(time.Time) *Counter { return count }}
		d.Run(ctx, func(r Request) {
			if r.I == 0 {
				time.Sleep(stall)
			}
			r.Count.Done("send", time.Since(r.Due))
		})
		op := count.Operations()["send"]
		if op.Done != all {
			t.Errorf("%d requests, want %d", op.Done, all)
		}
		waited := int64(0)
		for _, bar := range op.Latency.Distribution() {
			if bar.From >= (stall / 2).Microseconds() {
				waited += bar.Count
			}
		}
		if want := int64(stall / 2 * rate / time.Second); waited < want {
			t.Errorf("%d requests waited for half of the stall, want %d", waited, want)
		}
	})
}

// Every request that is due before the end is made, and no later request, even if the lanes are
// late.
func TestEverythingThatWasDueIsMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond)
		defer cancel()
		made := 0
		d := Driver{Rate: 10, Lanes: 1}
		d.Run(ctx, func(r Request) {
			if made++; r.I == 0 {
				time.Sleep(10 * time.Second)
			}
		})
		if made != 10 {
			t.Errorf("%d requests were made, want 10", made)
		}
	})
}

// Without a rate a lane makes one request after the other.
func TestAsManyAsPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		lanes, seen := map[int]int{}, map[int]bool{}
		(&Driver{Lanes: 3}).Run(ctx, func(r Request) {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			lanes[r.Lane]++
			seen[r.I] = true
		})
		if diff := cmp.Diff(map[int]int{0: 10, 1: 10, 2: 10}, lanes); diff != "" || len(seen) != 30 {
			t.Errorf("requests by lane (-want +got):\n%s", diff)
		}
	})
}

// The first failure ends all lanes, and is returned.
func TestTryEndsWithAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken, made := errors.New("broken"), atomic.Int64{}
		err := (&Driver{Lanes: 3}).Try(t.Context(), 1, func(r Request, _ *rand.Rand) error {
			time.Sleep(time.Millisecond)
			if made.Add(1) == 7 {
				return broken
			}
			return nil
		})
		if n := made.Load(); !errors.Is(err, broken) || n > 9 {
			t.Errorf("%v after %d requests", err, n)
		}
	})
}
