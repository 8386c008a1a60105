// Package gather has callers that come at the same moment share one round trip to the database. Who comes first goes at once, alone;
// who comes while a call is under way waits for the next one, with all the others who do. There is no timer: the slower the
// database, the larger are the batches.
package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Errors of what was not even tried.
var (
	ErrOverloaded = errors.New("gather: too many are waiting")
	ErrClosed     = errors.New("gather: closed")
)

// Limits bound the calls.
type Limits struct {
	Batch   int           // items of one call
	Queue   int           // items that wait for one
	Timeout time.Duration // of one call
}

// Calls are calls that share batches. It is safe for concurrent use.
type Calls[T, R any] struct {
	call   func(ctx context.Context, items []T) ([]R, error)
	limits Limits

	mu      sync.Mutex // guards what follows
	queue   []*waiter[T, R]
	running bool
	closed  bool
	idle    chan struct{} // closed once nothing runs and nothing will
}

type waiter[T, R any] struct {
	item   T
	done   chan struct{} // closed when result and err are set
	result R
	err    error
}

// New returns calls of call, which answers for each of its items, in order, or fails for all of them. Its context is nobody's in
// particular: it ends with the call's time alone.
func New[T, R any](limits Limits, call func(ctx context.Context, items []T) ([]R, error)) *Calls[T, R] {
	return &Calls[T, R]{call: call, limits: limits, idle: make(chan struct{})}
}

// Do has item answered, together with others. The error is ErrOverloaded, ErrClosed, ctx's or the call's. A caller whose ctx ends
// leaves: nothing becomes of its item if it was still waiting, and something may if its call was under way.
func (c *Calls[T, R]) Do(ctx context.Context, item T) (R, error) {
	w := &waiter[T, R]{item: item, done: make(chan struct{})}
	if err := c.enter(w); err != nil {
		return w.result, err
	}
	select {
	case <-w.done:
		return w.result, w.err
	case <-ctx.Done():
		c.leave(w)
		var none R
		return none, ctx.Err()
	}
}

func (c *Calls[T, R]) enter(w *waiter[T, R]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case len(c.queue) >= c.limits.Queue:
		return ErrOverloaded
	}
	c.queue = append(c.queue, w)
	if !c.running {
		c.running = true
		go c.run()
	}
	return nil
}

// leave takes w out of the queue, if it is still there.
func (c *Calls[T, R]) leave(w *waiter[T, R]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.queue, w); i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
}

// run makes calls until nobody waits.
func (c *Calls[T, R]) run() {
	for batch := c.next(); len(batch) > 0; batch = c.next() {
		c.serve(batch)
	}
}

func (c *Calls[T, R]) next() []*waiter[T, R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.queue), c.limits.Batch)
	batch := slices.Clone(c.queue[:n])
	c.queue = slices.Delete(c.queue, 0, n)
	if n == 0 {
		c.running = false
		c.finish()
	}
	return batch
}

func (c *Calls[T, R]) serve(batch []*waiter[T, R]) {
	items := make([]T, len(batch))
	for i, w := range batch {
		items[i] = w.item
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.limits.Timeout)
	defer cancel()
	results, err := c.call(ctx, items)
	if err == nil && len(results) != len(items) {
		err = errors.New("gather: the call did not answer for each item")
	}
	for i, w := range batch {
		if w.err = err; err == nil {
			w.result = results[i]
		}
		close(w.done)
	}
}

// Close has what is waiting answered and refuses what comes later. It returns once all is done, or ctx's error.
func (c *Calls[T, R]) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.finish()
	}
	c.mu.Unlock()
	select {
	case <-c.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish tells whoever closes the calls that all is done, if it is.
func (c *Calls[T, R]) finish() {
	if c.closed && !c.running {
		close(c.idle)
	}
}
