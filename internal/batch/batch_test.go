package batch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mlsd/internal/batch"
)

// gate runs batches. It waits until open is closed, and doubles the items.
type gate struct {
	open  chan struct{}
	mu    sync.Mutex // protects calls
	calls [][]int
}

func (g *gate) call(ctx context.Context, items []int) ([]int, error) {
	g.mu.Lock()
	g.calls = append(g.calls, items)
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	doubled := make([]int, len(items))
	for i, n := range items {
		doubled[i] = 2 * n
	}
	return doubled, nil
}

var limits = batch.Limits{Batch: 3, Queue: 5, Timeout: time.Second}

// The first item runs alone, the others share batches up to the limit, and each gets its own
// result.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		c := batch.New(limits, g.call)
		var all sync.WaitGroup
		for n := range 6 {
			all.Go(func() {
				if got, err := c.Do(t.Context(), n); err != nil || got != 2*n {
					t.Errorf("Do(%d) = %d, %v", n, got, err)
				}
			})
			synctest.Wait()
		}
		if _, err := c.Do(t.Context(), 7); !errors.Is(err, batch.ErrOverloaded) {
			t.Errorf("one too many: %v", err)
		}
		close(g.open)
		all.Wait()
		var sizes []int
		for _, call := range g.calls {
			sizes = append(sizes, len(call))
		}
		if len(sizes) != 3 || sizes[0] != 1 || sizes[1] != 3 || sizes[2] != 2 {
			t.Errorf("batches of %v, want 1, 3 and 2", sizes)
		}
	})
}

// The cost bounds a batch. An item that costs more runs alone.
func TestCost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		l := limits
		l.Cost = 10
		c := batch.New(l, g.call).Weigh(func(n int) int { return n })
		var all sync.WaitGroup
		for _, n := range []int{1, 6, 4, 5, 11, 2} {
			all.Go(func() {
				if _, err := c.Do(t.Context(), n); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(g.open)
		all.Wait()
		if want := [][]int{{1}, {6, 4}, {5}, {11}, {2}}; !slices.EqualFunc(g.calls, want, slices.Equal[[]int]) {
			t.Errorf("batches %v, want %v", g.calls, want)
		}
	})
}

// An item whose caller hangs up while it waits does not run. A caller that hangs up during a batch
// does not end the batch.
func TestHangUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		c := batch.New(limits, g.call)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for n := range 2 { // the first runs, the second waits
			all.Go(func() {
				if _, err := c.Do(ctx, n); !errors.Is(err, context.Canceled) {
					t.Errorf("Do(%d): %v", n, err)
				}
			})
			synctest.Wait()
		}
		all.Go(func() {
			if got, err := c.Do(t.Context(), 2); err != nil || got != 4 {
				t.Errorf("Do(2) = %d, %v", got, err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(g.open)
		all.Wait()
		if len(g.calls) != 2 || len(g.calls[1]) != 1 || g.calls[1][0] != 2 {
			t.Errorf("batches %v", g.calls)
		}
	})
}

// A batch that fails, takes too long or has too few results fails all of its items. The next batch
// runs.
func TestFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		for name, call := range map[string]func(context.Context, []int) ([]int, error){
			"fails":  func(context.Context, []int) ([]int, error) { return nil, broken },
			"hangs":  func(ctx context.Context, _ []int) ([]int, error) { <-ctx.Done(); return nil, ctx.Err() },
			"forget": func(context.Context, []int) ([]int, error) { return nil, nil },
		} {
			c := batch.New(limits, call)
			for range 2 {
				if _, err := c.Do(t.Context(), 1); err == nil {
					t.Errorf("%s: no error", name)
				}
			}
		}
	})
}

// Close runs the items that wait and refuses later ones.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		c := batch.New(limits, g.call)
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				if got, err := c.Do(t.Context(), n); err != nil || got != 2*n {
					t.Errorf("Do(%d) = %d, %v", n, got, err)
				}
			})
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := c.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed while a batch runs: %v", err)
		}
		if _, err := c.Do(t.Context(), 9); !errors.Is(err, batch.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		close(g.open)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		all.Wait()
		if err := batch.New(limits, g.call).Close(t.Context()); err != nil {
			t.Errorf("closed unused: %v", err)
		}
	})
}

// With Rests, items that wait are run after a pause as long as the last batch took. A lone item is
// run at once.
func TestRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond
		resting := limits
		resting.Rests = true
		c, begun := batch.New(resting, func(_ context.Context, items []int) ([]int, error) {
			time.Sleep(takes)
			return items, nil
		}), time.Now()
		var all sync.WaitGroup
		for n, want := range []time.Duration{takes, 3 * takes, 3 * takes, 3 * takes, 5 * takes} {
			all.Go(func() {
				if _, err := c.Do(t.Context(), n); err != nil || time.Since(begun) != want {
					t.Errorf("item %d was done after %s, want %s: %v", n, time.Since(begun), want, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if _, err := c.Do(t.Context(), 5); err != nil || time.Since(begun) != 6*takes {
			t.Errorf("the last was done after %s, want %s: %v", time.Since(begun), 6*takes, err)
		}
		c, begun = batch.New(resting, func(_ context.Context, items []int) ([]int, error) {
			time.Sleep(limits.Timeout)
			return items, nil
		}), time.Now()
		for n, want := range []time.Duration{limits.Timeout, 2*limits.Timeout + batch.MaxRest} {
			all.Go(func() {
				if _, err := c.Do(t.Context(), n); err != nil || time.Since(begun) != want {
					t.Errorf("item %d of a slow batch was done after %s, want %s: %v", n, time.Since(begun), want, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
	})
}
