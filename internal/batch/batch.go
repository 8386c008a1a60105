// Package batch lets calls that arrive at the same time share one round trip to the database. The
// first call starts at once, alone. Calls that arrive while it runs wait, and share the next batch.
// There is no timer: the slower the database, the larger the batches.
package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"mlsd/internal/tracing"
)

// Errors of items that were not tried.
var (
	ErrOverloaded = errors.New("batch: the queue is full")
	ErrClosed     = errors.New("batch: closed")
)

// Limits bound the batches.
type Limits struct {
	Batch   int           // items in one batch
	Queue   int           // items that wait
	Timeout time.Duration // for one batch
	Cost    int           // cost of one batch, by the function of Weigh; an item that costs more has a batch of its own
	// Rests makes the Batcher pause after each batch for as long as the batch took, but at most for
	// maxRest. So expensive batches use a connection only half of the time, however many items
	// wait.
	Rests bool
}

// maxRest bounds the pause after a batch that took long because of the database.
const maxRest = 25 * time.Millisecond

// Batcher runs items in batches, one batch at a time. It is safe for concurrent use.
type Batcher[T, R any] struct {
	run    func(ctx context.Context, items []T) ([]R, error)
	limits Limits
	cost   func(T) int // nil means that items cost nothing

	mu      sync.Mutex // protects the fields below
	queue   []*entry[T, R]
	running bool
	closed  bool
	idle    chan struct{} // closed when the Batcher is closed and no batch runs
}

// entry is an item in the queue or in the running batch.
type entry[T, R any] struct {
	item   T
	span   tracing.Span  // the caller's span
	done   chan struct{} // closed when result and err are set
	result R
	err    error
}

// New returns a Batcher. run returns one result for each item, in order, or an error for all items.
// The context of run ends with the timeout, and not with the context of a caller.
func New[T, R any](limits Limits, run func(ctx context.Context, items []T) ([]R, error)) *Batcher[T, R] {
	return &Batcher[T, R]{run: run, limits: limits, idle: make(chan struct{})}
}

// Weigh makes limits.Cost bound the batches of b, and returns b.
func (b *Batcher[T, R]) Weigh(cost func(T) int) *Batcher[T, R] {
	b.cost = cost
	return b
}

// Do runs item in a batch and returns its result. The error is ErrOverloaded, ErrClosed, the error
// of ctx or the error of the batch. If ctx ends while the item waits, the item does not run. If ctx
// ends while the batch runs, the batch continues.
func (b *Batcher[T, R]) Do(ctx context.Context, item T) (R, error) {
	e := &entry[T, R]{item: item, span: tracing.Of(ctx), done: make(chan struct{})}
	if err := b.enqueue(e); err != nil {
		return e.result, err
	}
	select {
	case <-e.done:
		return e.result, e.err
	case <-ctx.Done():
		b.remove(e)
		var none R
		return none, ctx.Err()
	}
}

func (b *Batcher[T, R]) enqueue(e *entry[T, R]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case len(b.queue) >= b.limits.Queue:
		return ErrOverloaded
	}
	b.queue = append(b.queue, e)
	if !b.running {
		b.running = true
		go b.runAll()
	}
	return nil
}

// remove takes e out of the queue, if it is still there.
func (b *Batcher[T, R]) remove(e *entry[T, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, e); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
}

// runAll runs batches until the queue is empty.
func (b *Batcher[T, R]) runAll() {
	for entries := b.next(); len(entries) > 0; entries = b.next() {
		began := time.Now()
		b.runBatch(entries)
		if b.limits.Rests && b.Waiting() > 0 {
			time.Sleep(min(time.Since(began), maxRest))
		}
	}
}

// Waiting returns the number of items that wait for the next batch.
func (b *Batcher[T, R]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// next takes the next batch out of the queue. The batch is empty if no item waits.
func (b *Batcher[T, R]) next() []*entry[T, R] {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), b.limits.Batch)
	if b.cost != nil {
		sum := 0
		for i, e := range b.queue[:n] {
			if sum += b.cost(e.item); sum > b.limits.Cost && i > 0 {
				n = i
				break
			}
		}
	}
	entries := slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	if n == 0 {
		b.running = false
		b.closeIdle()
	}
	return entries
}

func (b *Batcher[T, R]) runBatch(entries []*entry[T, R]) {
	items := make([]T, len(entries))
	for i, e := range entries {
		items[i] = e.item
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.limits.Timeout)
	defer cancel()
	ctx, span := tracing.Shared(ctx, "batch", len(entries), func(i int) tracing.Span { return entries[i].span })
	defer span.End()
	span.Number("batch.size", len(items))
	results, err := b.run(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fmt.Errorf("batch: %d results for %d items", len(results), len(items))
	}
	for i, e := range entries {
		if e.err = err; err == nil {
			e.result = results[i]
		}
		close(e.done)
	}
}

// Close refuses new items and runs the waiting items. It returns when no batch is running, or with
// ctx's error.
func (b *Batcher[T, R]) Close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		b.closeIdle()
	}
	b.mu.Unlock()
	select {
	case <-b.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeIdle closes idle if the Batcher is closed and no batch runs.
func (b *Batcher[T, R]) closeIdle() {
	if b.closed && !b.running {
		close(b.idle)
	}
}
