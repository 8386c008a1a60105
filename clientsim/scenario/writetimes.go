package scenario

import (
	"context"
	"slices"
	"sync"
	"time"

	"mlsd/clientsim/xrpc"
)

// writeTimes knows when nodes acknowledged writes, and the longest time without one.
type writeTimes struct {
	mu    sync.Mutex  // guards what follows
	last  []time.Time // by node
	first []time.Time // by node: since reset, the first one after the time that await waits for
	from  time.Time   // that time
	gap   time.Duration
}

func newWriteTimes(nodes int) *writeTimes {
	return &writeTimes{last: make([]time.Time, nodes), first: make([]time.Time, nodes)}
}

// answered records an acknowledged write.
func (t *writeTimes) answered(node int, call xrpc.Call) {
	if call.Key == "" {
		return
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	last := slices.MaxFunc(t.last, time.Time.Compare)
	if !last.IsZero() {
		t.gap = max(t.gap, now.Sub(last))
	}
	t.last[node] = now
	if !t.from.IsZero() && t.first[node].IsZero() && now.After(t.from) {
		t.first[node] = now
	}
}

// reset forgets the longest time.
func (t *writeTimes) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gap = 0
}

// longest is the longest time without an acknowledged write since reset.
func (t *writeTimes) longest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gap
}

// awaitNone waits until no write was acknowledged for some time.
func (t *writeTimes) awaitNone(ctx context.Context, still, limit time.Duration) error {
	return xrpc.Until(ctx, limit, func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return time.Since(slices.MaxFunc(t.last, time.Time.Compare)) > still, nil
	})
}

// await waits until each node has acknowledged a write after a moment.
func (t *writeTimes) await(ctx context.Context, from time.Time, limit time.Duration) error {
	t.mu.Lock()
	t.from = from
	clear(t.first)
	t.mu.Unlock()
	return xrpc.Until(ctx, limit, func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return !slices.ContainsFunc(t.first, time.Time.IsZero), nil
	})
}
