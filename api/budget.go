package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes that requests hold in memory at one time: of all callers together, and of each, so that a few slow
// ones cannot stop everybody.
type budget struct {
	all       *semaphore.Weighted
	perCaller int64

	mu    sync.Mutex // guards what follows
	parts map[string]*part
	spare []*part // for whoever comes next
}

// maxSpare bounds them.
const maxSpare = 256

// part is one caller's, while it has or wants any.
type part struct {
	bytes *semaphore.Weighted
	users int // requests that have it or wait for it
}

func newBudget(all, perCaller int64) *budget {
	return &budget{all: semaphore.NewWeighted(all), perCaller: perCaller, parts: map[string]*part{}}
}

// maxRoomWait is how long a request waits for room.
const maxRoomWait = 5 * time.Second

// take reserves n bytes, at most the caller's part, for the caller. Errors: limited, if the caller's other requests hold too
// much for too long; busy, if those of all do.
func (b *budget) take(ctx context.Context, caller string, n int64) (room, error) {
	p := b.enter(caller)
	if p.bytes.TryAcquire(n) {
		if b.all.TryAcquire(n) { // as nearly always
			return room{budget: b, caller: caller, part: p, n: n}, nil
		}
		p.bytes.Release(n)
	}
	ctx, cancel := context.WithTimeout(ctx, maxRoomWait)
	defer cancel()
	if err := p.bytes.Acquire(ctx, n); err != nil {
		b.leave(caller)
		return room{}, limited{after: time.Second}
	}
	if err := b.all.Acquire(ctx, n); err != nil {
		p.bytes.Release(n)
		b.leave(caller)
		return room{}, busy{after: time.Second}
	}
	return room{budget: b, caller: caller, part: p, n: n}, nil
}

func (b *budget) enter(caller string) *part {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.parts[caller]
	if !ok {
		if last := len(b.spare) - 1; last >= 0 {
			p, b.spare = b.spare[last], b.spare[:last]
		} else {
			p = &part{bytes: semaphore.NewWeighted(b.perCaller)}
		}
		b.parts[caller] = p
	}
	p.users++
	return p
}

func (b *budget) leave(caller string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parts[caller]
	if p.users--; p.users > 0 {
		return
	}
	delete(b.parts, caller)
	if len(b.spare) < maxSpare { // nobody holds anything of it
		b.spare = append(b.spare, p)
	}
}

// room is what one request has reserved, until release. The zero room has nothing.
type room struct {
	budget *budget
	caller string
	part   *part // nil: nothing, or nothing any more
	n      int64
	buffer *[]byte // which the bytes are in, if it is to be used again
}

// shrink gives back all but n bytes.
func (r *room) shrink(n int64) {
	if n >= r.n {
		return
	}
	r.part.bytes.Release(r.n - n)
	r.budget.all.Release(r.n - n)
	r.n = n
}

// release gives everything back.
func (r *room) release() {
	if r.part == nil {
		return
	}
	if r.buffer != nil {
		giveBuffer(r.buffer)
		r.buffer = nil
	}
	r.shrink(0)
	r.budget.leave(r.caller)
	r.part = nil
}
