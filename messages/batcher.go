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
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
)

// Bounds of group commit.
const (
	mostShards   = 4               // by default; more do not pay
	batchDrafts  = 256             // of one transaction
	batchBytes   = 8 << 20         // of their bodies; a larger one goes alone
	queueDrafts  = 4096            // that wait for a transaction, on this node
	queueBytes   = 64 << 20        // of their bodies
	asideLanes   = 8               // busy convos that are waited for at a time
	batchTimeout = 8 * time.Second // of one transaction with all its attempts
	twinPatience = 2 * time.Second // for the same request, as long as lock_timeout where that is another node's
)

// Errors of sends that were not even tried.
var (
	ErrOverloaded = errors.New("too many messages are waiting to be written")
	ErrClosed     = errors.New("the log is closed")
)

// WithShards sets how many transactions with messages the node may have in flight, besides those of busy convos.
func WithShards(n int) Option {
	return func(l *Log) { l.sends.shards = newLanes(n) }
}

// OnReserved has messages share transactions on connections of their own: a batch of hundreds must not stand in line behind as many
// single requests. It has one in flight for each shard, and eight for busy convos.
func OnReserved(pool *pgxpool.Pool) Option {
	return func(l *Log) { l.batches = pool }
}

// OnBatch has every batch of sends told to f, by how many there are in it.
func OnBatch(f func(sends int)) Option {
	return func(l *Log) { l.sends.told = f }
}

// Send appends one message, in a transaction that it shares with those that come at the same time, and returns once it is durable.
// The error is ErrOverloaded, ErrClosed, ctx's, that of a Result or one of Append's. A caller whose ctx ends leaves: its message is
// not written if it was still waiting, and may be if its transaction was under way.
func (l *Log) Send(ctx context.Context, d Draft) (Receipt, error) {
	if o := l.otherwise.Load(); o != nil {
		return o.send(ctx, d)
	}
	s := &send{Draft: d, done: make(chan Result, 1)}
	twin, err := l.sends.enter(s)
	if err != nil {
		return Receipt{}, err
	}
	var patience <-chan time.Time
	if twin {
		t := time.NewTimer(twinPatience)
		defer t.Stop()
		patience = t.C
	}
	select {
	case r := <-s.done:
		return r.Receipt, r.Err
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience:
		l.metrics.InProgress(NSID)
		err = idem.ErrInProgress
	}
	l.sends.leave(s)
	return Receipt{}, err
}

// Close has what is waiting written and refuses what comes later. It returns once all is done, or ctx's error.
func (l *Log) Close(ctx context.Context) error { return l.sends.close(ctx) }

// batcher is group commit. A convo has one lane at a time, whose goroutine writes what has come while its last transaction was
// under way. There is no timer: who comes first goes at once, alone, and the slower the disk, the larger are the batches.
//
// A transaction of a shard passes over convos that somebody else holds, so that they hold up no others. Each gets a lane of its
// own, which waits for it, until nothing of it is left.
type batcher struct {
	write func(ctx context.Context, drafts []Draft, wait bool) []Result
	told  func(sends int)
	seed  maphash.Seed
	slots chan struct{} // held by a lane of a busy convo while it writes

	mu       sync.Mutex // guards what follows, and the lanes
	shards   []*lane
	aside    map[uuid.UUID]*lane // of busy convos
	waiting  int                 // drafts in queues
	bytes    int                 // of their bodies
	closed   bool
	running  int           // lanes with a goroutine
	finished chan struct{} // closed once the batcher is closed and nothing runs
}

// lane is what one goroutine writes, in the order in which it came.
type lane struct {
	queue   []*send
	writing []*send
	running bool
	convo   *uuid.UUID // whose lane it is; nil for a shard
}

// send is a draft and whoever waits for its result.
type send struct {
	Draft
	done chan Result // takes one without blocking
}

func newBatcher(write func(context.Context, []Draft, bool) []Result) *batcher {
	return &batcher{
		write: write, told: func(int) {}, seed: maphash.MakeSeed(), slots: make(chan struct{}, asideLanes), shards: newLanes(defaultShards()),
		aside: map[uuid.UUID]*lane{}, finished: make(chan struct{}),
	}
}

// defaultShards is one for every two processors, which is all that a database beside the server can use: two shards on two processors
// halve the batches and cost the database half as much again for a message.
func defaultShards() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), mostShards) }

func newLanes(n int) []*lane {
	lanes := make([]*lane, n)
	for i := range lanes {
		lanes[i] = &lane{}
	}
	return lanes
}

// enter queues s and reports whether the same request is being written already.
func (b *batcher) enter(s *send) (twin bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, ErrClosed
	}
	if b.waiting > 0 && (b.waiting >= queueDrafts || b.bytes+len(s.Body) > queueBytes) {
		return false, ErrOverloaded
	}
	ln := b.laneOf(s.ConvoID)
	b.push(ln, s)
	return slices.ContainsFunc(ln.writing, func(w *send) bool { return w.repeats(&s.Draft) }), nil
}

func (b *batcher) laneOf(convo uuid.UUID) *lane {
	if ln, busy := b.aside[convo]; busy {
		return ln
	}
	return b.shards[maphash.Bytes(b.seed, convo[:])%uint64(len(b.shards))]
}

// push adds s to the queue of ln and sees that somebody works on it.
func (b *batcher) push(ln *lane, s *send) {
	ln.queue = append(ln.queue, s)
	b.waiting++
	b.bytes += len(s.Body)
	if !ln.running {
		ln.running = true
		b.running++
		go b.run(ln)
	}
}

// leave takes s out of its queue, if it is still there.
func (b *batcher) leave(s *send) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ln := range append(slices.Clone(b.shards), b.aside[s.ConvoID]) {
		if ln == nil {
			continue
		}
		if i := slices.Index(ln.queue, s); i >= 0 {
			ln.queue = slices.Delete(ln.queue, i, i+1)
			b.waiting--
			b.bytes -= len(s.Body)
			return
		}
	}
}

// run writes what is in the queue of ln, batch by batch, until nothing is.
func (b *batcher) run(ln *lane) {
	for b.runOnce(ln) {
	}
}

// runOnce writes the next batch and reports whether there was one.
func (b *batcher) runOnce(ln *lane) bool {
	if ln.convo != nil {
		b.slots <- struct{}{}
		defer func() { <-b.slots }()
	}
	batch := b.next(ln)
	if len(batch) == 0 {
		return false
	}
	b.settle(ln, batch)
	return true
}

// next takes the next batch out of ln's queue. If there is none, ln has nobody working on it any more.
func (b *batcher) next(ln *lane) []*send {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(ln.queue), batchDrafts) && (n == 0 || bytes+len(ln.queue[n].Body) <= batchBytes) {
		bytes += len(ln.queue[n].Body)
		n++
	}
	ln.writing, ln.queue = slices.Clone(ln.queue[:n]), slices.Delete(ln.queue, 0, n)
	b.waiting -= n
	b.bytes -= bytes
	if n > 0 {
		return ln.writing
	}
	ln.running = false
	if ln.convo != nil {
		delete(b.aside, *ln.convo)
	}
	b.running--
	b.finish()
	return nil
}

// settle writes batch, hands each its result, and sets aside what belongs to busy convos.
func (b *batcher) settle(ln *lane, batch []*send) {
	drafts := make([]Draft, len(batch))
	for i, s := range batch {
		drafts[i] = s.Draft
	}
	b.told(len(batch))
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	for i, r := range b.write(ctx, drafts, ln.convo != nil) {
		if errors.Is(r.Err, ErrBusy) && ln.convo == nil {
			if r.spent {
				batch[i].Token = nil
			}
			b.setAside(batch[i])
			continue
		}
		batch[i].done <- r
	}
}

// setAside moves s, which has been admitted, to the lane of its convo.
func (b *batcher) setAside(s *send) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ln := b.aside[s.ConvoID]
	if ln == nil {
		convo := s.ConvoID
		ln = &lane{convo: &convo}
		b.aside[convo] = ln
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

// finish tells whoever closes the batcher that all is done, if it is.
func (b *batcher) finish() {
	if b.closed && b.running == 0 {
		close(b.finished)
	}
}
