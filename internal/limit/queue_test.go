package limit_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"mlsd/internal/limit"
)

// refusal fails the test unless err is a *limit.RefusedError that says what it should.
func refusal(t *testing.T, err error, own bool, cause error) {
	t.Helper()
	var refused *limit.RefusedError
	if !errors.As(err, &refused) || refused.Own != own || !errors.Is(refused.Err, cause) {
		t.Errorf("%v, want a refusal, own %t, because of %v", err, own, cause)
	}
}

// empty fails the test unless nobody uses or waits for units.
func empty(t *testing.T, q *limit.Queue) {
	t.Helper()
	if used, waiting := q.Used(); used != 0 || waiting != 0 || q.Missing() != 0 {
		t.Errorf("at the end %d units are used, and %d requests wait", used, waiting)
	}
}

// Keys that wait take turns, and the requests of one keep their order.
func TestQueueTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, order := &limit.Queue{Size: 1}, []string{}
		if !q.TryAcquire("first", 1) {
			t.Fatal("an empty queue has no units")
		}
		var all sync.WaitGroup
		for _, name := range []string{"mallory 1", "mallory 2", "mallory 3", "alice 1", "bob 1", "alice 2"} {
			all.Go(func() {
				if err := q.Acquire(t.Context(), name[:3], 1); err != nil {
					t.Error(err)
				}
				order = append(order, name) // one at a time
				q.Release(name[:3], 1)
			})
			synctest.Wait()
		}
		if q.TryAcquire("eve", 1) || q.Missing() != 1 {
			t.Errorf("%d units are missing, want 1", q.Missing())
		}
		q.Release("first", 1)
		all.Wait()
		if want := []string{"mallory 1", "alice 1", "bob 1", "mallory 2", "alice 2", "mallory 3"}; !slices.Equal(order,
			want) {
			t.Errorf("%v, want %v", order, want)
		}
		empty(t, q)
	})
}

// A key has its share, and all keys together the whole. A refusal says which of them was used up.
func TestQueueShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &limit.Queue{Size: 10, Share: 6}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := q.Acquire(gone, "alice", 6); err != nil { // need not wait
			t.Fatal(err)
		}
		refusal(t, q.Acquire(gone, "alice", 1), true, context.Canceled)
		refusal(t, q.AcquireOfOthers(t.Context(), "alice", 1), true, nil)
		if !q.TryAcquire("bob", 4) || q.TryAcquire("carol", 1) || q.UsedBy("alice") != 6 || q.UsedBy("carol") != 0 {
			t.Error("bob does not get what is left, or carol more than that")
		}
		refusal(t, q.Acquire(gone, "carol", 1), false, context.Canceled)
		refusal(t, q.AcquireOfOthers(gone, "carol", 1), false, context.Canceled)

		// A request for many units is not overtaken by those for few. One that its own key keeps
		// waiting keeps nobody waiting.
		got := make(chan string, 3)
		for _, r := range []struct {
			key   string
			units int64
		}{{"alice", 2}, {"carol", 5}, {"dave", 1}} {
			go func() {
				if err := q.Acquire(t.Context(), r.key, r.units); err != nil {
					t.Error(err)
				}
				got <- r.key
			}()
			synctest.Wait()
		}
		q.Release("bob", 4)
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("%s overtakes", <-got)
		}
		q.Release("alice", 6)
		synctest.Wait()
		if order := []string{<-got, <-got, <-got}; !slices.Contains(order, "alice") {
			t.Errorf("%v have units", order)
		}
		q.Release("alice", 2)
		q.Release("carol", 5)
		q.Release("dave", 1)
		empty(t, q)
	})
}

// So many requests wait, of one key and of all. A key that has none waiting still gets its turn. Who
// stops waiting does not count.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiting, ofKey = 12, 4
		q := &limit.Queue{Size: 1, MaxWaiting: waiting, MaxWaitingOfKey: ofKey}
		q.TryAcquire("first", 1)
		ctx, hangUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		wait := func(key string) {
			all.Go(func() { refusal(t, q.Acquire(ctx, key, 1), false, context.Canceled) })
			synctest.Wait()
		}
		for i := range waiting {
			wait(strconv.Itoa(i / ofKey))
		}
		refusal(t, q.Acquire(t.Context(), "0", 1), true, nil)
		for i := range waiting - waiting/ofKey {
			wait("one " + strconv.Itoa(i))
		}
		refusal(t, q.Acquire(t.Context(), "one 0", 1), false, nil)
		refusal(t, q.Acquire(t.Context(), "another", 1), false, nil)
		hangUp()
		all.Wait()
		q.Release("first", 1)
		empty(t, q)
	})
}

// If a request that keeps others waiting hangs up, the others get their units.
func TestQueueOfTheGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &limit.Queue{Size: 3}
		q.TryAcquire("first", 2)
		ctx, hangUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { refusal(t, q.Acquire(ctx, "large", 3), false, context.Canceled) })
		synctest.Wait()
		all.Go(func() {
			if err := q.Acquire(t.Context(), "small", 1); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		hangUp()
		all.Wait()
		q.Release("first", 2)
		q.Release("small", 1)
		empty(t, q)
	})
}
