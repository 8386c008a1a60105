package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Memory for requests, in bytes: of all callers together, and of one caller.
const (
	smallMemory, smallMemoryOfCaller   = 64 * mib, 32 * mib // bodies; and again answers
	largeBodies, largeBodiesOfCaller   = 256 * mib, 32 * mib
	largeAnswers, largeAnswersOfCaller = 512 * mib, 64 * mib

	// maxSmall separates small from large: uploads and pages must not keep the many small requests
	// waiting.
	maxSmall = 256 * kib
)

// maxMemoryWait is how long a request waits for memory.
const maxMemoryWait = 5 * time.Second

// memory is the memory that the requests of this server can reserve at one time.
type memory struct {
	smallBodies, largeBodies, smallAnswers, largeAnswers *memoryPool
}

func newMemory() memory {
	return memory{
		smallBodies:  newMemoryPool(smallMemory, smallMemoryOfCaller),
		largeBodies:  newMemoryPool(largeBodies, largeBodiesOfCaller),
		smallAnswers: newMemoryPool(smallMemory, smallMemoryOfCaller),
		largeAnswers: newMemoryPool(largeAnswers, largeAnswersOfCaller),
	}
}

// forBody reserves memory for a body of n bytes. The errors are those of [memoryPool.reserve].
func (m *memory) forBody(ctx context.Context, caller string, n int64) (reservation, error) {
	if n > maxSmall {
		return m.largeBodies.reserve(ctx, caller, n)
	}
	return m.smallBodies.reserve(ctx, caller, n)
}

// forAnswer reserves memory for an answer of n bytes. The errors are those of [memoryPool.reserve].
func (m *memory) forAnswer(ctx context.Context, caller string, n int64) (reservation, error) {
	if n > maxSmall {
		return m.largeAnswers.reserve(ctx, caller, n)
	}
	return m.smallAnswers.reserve(ctx, caller, n)
}

// memoryPool bounds the bytes that requests hold at one time: those of all callers together, and
// those of each caller, so that a few slow callers cannot stop the others.
type memoryPool struct {
	all       *semaphore.Weighted
	perCaller int64

	mu     sync.Mutex // guards what follows
	shares map[string]*memoryShare
	spare  []*memoryShare // unused, for the next callers; at most maxSpare
}

const maxSpare = 256

// memoryShare is the share of one caller that has requests.
type memoryShare struct {
	bytes *semaphore.Weighted
	users int // requests that have a reservation or wait for one
}

func newMemoryPool(all, perCaller int64) *memoryPool {
	return &memoryPool{all: semaphore.NewWeighted(all), perCaller: perCaller, shares: map[string]*memoryShare{}}
}

// reserve reserves n bytes, at most the caller's share. Errors: limited, if the caller's other
// requests use too much of its share for too long; busy, if all callers together use too much.
func (p *memoryPool) reserve(ctx context.Context, caller string, n int64) (reservation, error) {
	share := p.acquireShare(caller)
	if share.bytes.TryAcquire(n) {
		if p.all.TryAcquire(n) { // nearly always
			return reservation{pool: p, caller: caller, share: share, n: n}, nil
		}
		share.bytes.Release(n)
	}
	ctx, cancel := context.WithTimeout(ctx, maxMemoryWait)
	defer cancel()
	if err := share.bytes.Acquire(ctx, n); err != nil {
		p.releaseShare(caller)
		return reservation{}, limited{after: time.Second}
	}
	if err := p.all.Acquire(ctx, n); err != nil {
		share.bytes.Release(n)
		p.releaseShare(caller)
		return reservation{}, busy{after: time.Second}
	}
	return reservation{pool: p, caller: caller, share: share, n: n}, nil
}

func (p *memoryPool) acquireShare(caller string) *memoryShare {
	p.mu.Lock()
	defer p.mu.Unlock()
	share, ok := p.shares[caller]
	if !ok {
		if last := len(p.spare) - 1; last >= 0 {
			share, p.spare = p.spare[last], p.spare[:last]
		} else {
			share = &memoryShare{bytes: semaphore.NewWeighted(p.perCaller)}
		}
		p.shares[caller] = share
	}
	share.users++
	return share
}

func (p *memoryPool) releaseShare(caller string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.shares[caller]
	if share.users--; share.users > 0 {
		return
	}
	delete(p.shares, caller)
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, share)
	}
}

// reservation is the memory that one request has reserved, until release. The zero reservation is
// empty.
type reservation struct {
	pool   *memoryPool
	caller string
	share  *memoryShare // nil: nothing is reserved
	n      int64
	buffer *[]byte // goes back to the pool of buffers on release, if not nil
}

// shrink gives back all but n bytes.
func (r *reservation) shrink(n int64) {
	if n >= r.n {
		return
	}
	r.share.bytes.Release(r.n - n)
	r.pool.all.Release(r.n - n)
	r.n = n
}

// release gives everything back.
func (r *reservation) release() {
	if r.share == nil {
		return
	}
	if r.buffer != nil {
		giveBuffer(r.buffer)
		r.buffer = nil
	}
	r.shrink(0)
	r.pool.releaseShare(r.caller)
	r.share = nil
}
