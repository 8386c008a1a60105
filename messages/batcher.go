package messages

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"mlsd/internal/tracing"
)

// Bounds of group commit.
const (
	maxShards    = 4               // by default; more shards do not write faster
	batchDrafts  = 256             // of one transaction
	batchBytes   = 8 << 20         // of their bodies; a larger body is alone in its transaction
	queueDrafts  = 4096            // that wait for a transaction, on this node
	queueBytes   = 64 << 20        // of their bodies
	busyLanes    = 8               // busy convos that are written at a time
	batchTimeout = 8 * time.Second // of one transaction with all its attempts
)

// batcher is group commit: messages that arrive during a transaction share the next one. There is
// no timer: the first message is written at once, alone, and the slower the disk, the larger the
// batches. A convo belongs to one shard, and a lane has one goroutine, so messages of a convo are
// written in the order in which they arrive, unless the convo is busy.
//
// A transaction of a shard skips convos that others have locked, so that they do not delay other
// convos. The skipped messages of such a busy convo get a lane of their own, which waits for the
// lock. Messages that arrive later may overtake them. The lane ends when its queue is empty.
//
// Every message passes a shard first, also if its convo has a lane: only members' messages are
// skipped, so nobody else waits with them, or learns from a wait that the convo exists.
type batcher struct {
	write   func(ctx context.Context, drafts []Draft, wait bool) []Result
	onBatch func(drafts int)
	tracer  *tracing.Tracer
	seed    maphash.Seed
	slots   chan struct{} // a busy convo's lane holds one while it writes

	mu       sync.Mutex // guards what follows, and the lanes
	shards   []*lane
	busy     map[uuid.UUID]*lane // lanes of busy convos
	queued   int                 // drafts in all queues
	bytes    int                 // of their bodies
	closed   bool
	running  int           // lanes with a goroutine
	finished chan struct{} // closed once the batcher is closed and no goroutine runs
}

// lane is what one goroutine writes, in order.
type lane struct {
	queue   []*send
	writing []*send // the batch of the transaction that runs
	running bool
	convo   *uuid.UUID // the busy convo; nil for a shard
}

// send is a draft and the place for its result.
type send struct {
	Draft
	span tracing.Span // of the caller
	done chan Result  // buffers one result, so that writing to it never blocks
}

func newBatcher(write func(context.Context, []Draft, bool) []Result) *batcher {
	return &batcher{
		write: write, onBatch: func(int) {}, seed: maphash.MakeSeed(), slots: make(chan struct{}, busyLanes),
		shards: newLanes(defaultShards()), busy: map[uuid.UUID]*lane{}, finished: make(chan struct{}),
	}
}

// defaultShards is one for every two processors. A second shard on two processors halves the
// batches, and a message then costs a database on the same machine half as much again.
func defaultShards() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), maxShards) }

func newLanes(n int) []*lane {
	lanes := make([]*lane, n)
	for i := range lanes {
		lanes[i] = &lane{}
	}
	return lanes
}

// enqueue adds s to the queue of its convo, and reports whether an equal request is being written
// already.
func (b *batcher) enqueue(s *send) (duplicate bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, ErrClosed
	}
	if b.queued > 0 && (b.queued >= queueDrafts || b.bytes+len(s.Body) > queueBytes) {
		return false, ErrOverloaded
	}
	ln := b.shardOf(s.ConvoID)
	b.push(ln, s)
	writing := ln.writing
	if busy := b.busy[s.ConvoID]; busy != nil {
		writing = append(slices.Clip(writing), busy.writing...)
	}
	return slices.ContainsFunc(writing, func(w *send) bool { return w.repeats(&s.Draft) }), nil
}

func (b *batcher) shardOf(convo uuid.UUID) *lane {
	return b.shards[maphash.Bytes(b.seed, convo[:])%uint64(len(b.shards))]
}

// push adds s to the queue of ln, and starts the goroutine of ln unless it runs.
func (b *batcher) push(ln *lane, s *send) {
	ln.queue = append(ln.queue, s)
	b.queued++
	b.bytes += len(s.Body)
	if !ln.running {
		ln.running = true
		b.running++
		go b.run(ln)
	}
}

// cancel removes s from its queue, if it is still there.
func (b *batcher) cancel(s *send) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ln := range append(slices.Clone(b.shards), b.busy[s.ConvoID]) {
		if ln == nil {
			continue
		}
		if i := slices.Index(ln.queue, s); i >= 0 {
			ln.queue = slices.Delete(ln.queue, i, i+1)
			b.queued--
			b.bytes -= len(s.Body)
			return
		}
	}
}

// run writes the queue of ln, batch by batch, until it is empty.
func (b *batcher) run(ln *lane) {
	for b.runOnce(ln) {
	}
}

// runOnce writes the next batch of ln, and reports whether there was one. A draft whose convo is
// busy moves to the convo's own lane.
func (b *batcher) runOnce(ln *lane) bool {
	if ln.convo != nil {
		b.slots <- struct{}{}
		defer func() { <-b.slots }()
	}
	batch := b.next(ln)
	if len(batch) == 0 {
		return false
	}
	drafts := make([]Draft, len(batch))
	for i, s := range batch {
		drafts[i] = s.Draft
	}
	b.onBatch(len(batch))
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	ctx, span := tracing.Shared(ctx, "batch", len(batch), func(i int) tracing.Span { return batch[i].span })
	defer span.End()
	span.Number("batch.size", len(batch))
	for i, r := range b.write(ctx, drafts, ln.convo != nil) {
		if errors.Is(r.Err, ErrBusy) && ln.convo == nil {
			b.enqueueBusy(batch[i])
			continue
		}
		if r.Err == nil && !r.Replayed {
			b.tracer.Wrote(drafts[i].ConvoID, r.Seq, batch[i].span)
		}
		batch[i].done <- r
	}
	return true
}

// next takes the next batch out of ln's queue. If there is none, the goroutine of ln ends.
func (b *batcher) next(ln *lane) []*send {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(ln.queue), batchDrafts) && (n == 0 || bytes+len(ln.queue[n].Body) <= batchBytes) {
		bytes += len(ln.queue[n].Body)
		n++
	}
	ln.writing, ln.queue = slices.Clone(ln.queue[:n]), slices.Delete(ln.queue, 0, n)
	b.queued -= n
	b.bytes -= bytes
	if n > 0 {
		return ln.writing
	}
	ln.running = false
	if ln.convo != nil {
		delete(b.busy, *ln.convo)
	}
	b.running--
	b.finish()
	return nil
}

// enqueueBusy adds s, which has been admitted before, to the lane of its busy convo.
func (b *batcher) enqueueBusy(s *send) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ln := b.busy[s.ConvoID]
	if ln == nil {
		convo := s.ConvoID
		ln = &lane{convo: &convo}
		b.busy[convo] = ln
	}
	b.push(ln, s)
}

func (b *batcher) close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		b.finish()
	}
	b.mu.Unlock()
	select {
	case <-b.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish closes finished, if the batcher is closed and no goroutine runs.
func (b *batcher) finish() {
	if b.closed && b.running == 0 {
		close(b.finished)
	}
}
