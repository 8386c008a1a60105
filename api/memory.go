package api

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Memory for requests, in bytes: of all callers together, and of one caller.
const (
	tinyMemory, tinyMemoryOfCaller     = 64 * mib, 8 * mib  // bodies up to maxTiny
	smallMemory, smallMemoryOfCaller   = 64 * mib, 32 * mib // bodies up to maxSmall; and again answers
	largeBodies, largeBodiesOfCaller   = 256 * mib, 32 * mib
	largeAnswers, largeAnswersOfCaller = 512 * mib, 64 * mib
	drainMemory, drainMemoryOfAddress  = 1024 * drainBuffer, 64 * drainBuffer // refused bodies
	// Attachments are slow, and have pools of their own: uploads one, downloads another.
	bytesMemory, bytesMemoryOfCaller = 1024 * uploadMemory, 64 * uploadMemory

	// maxTiny and maxSmall separate sizes: uploads and pages must not keep the many small requests
	// waiting.
	maxTiny  = 16 * kib
	maxSmall = 256 * kib
)

const (
	// maxMemoryWait is how long a request waits for memory.
	maxMemoryWait = 5 * time.Second
	// maxGrowthWait is how long an answer waits for more memory while it holds a connection of the
	// database.
	maxGrowthWait = 2 * time.Second
)

// Limits of those who are slow. A transfer is slow once it lasts slowAfter.
const (
	slowAfter = time.Second
	// slowShare is the part of a pool that the slow transfers of one address can hold: one in so
	// many. Quick ones have no such limit, because all users of a PDS share its address.
	slowShare = 4
	// maxSlowOfAddress is how many slow transfers an address can have in one pool.
	maxSlowOfAddress = 256
	// checkSlowEvery is how often a pool looks for slow transfers.
	checkSlowEvery = 100 * time.Millisecond
)

// memory is the memory that the requests of this server can reserve at one time.
type memory struct {
	tinyBodies, smallBodies, largeBodies, smallAnswers, largeAnswers, drains, uploads, downloads *memoryPool
}

func newMemory() memory {
	return memory{
		tinyBodies:   newMemoryPool(tinyMemory, tinyMemoryOfCaller),
		smallBodies:  newMemoryPool(smallMemory, smallMemoryOfCaller),
		largeBodies:  newMemoryPool(largeBodies, largeBodiesOfCaller),
		smallAnswers: newMemoryPool(smallMemory, smallMemoryOfCaller),
		largeAnswers: newMemoryPool(largeAnswers, largeAnswersOfCaller),
		drains:       newMemoryPool(drainMemory, drainMemoryOfAddress),
		uploads:      newMemoryPool(bytesMemory, bytesMemoryOfCaller),
		downloads:    newMemoryPool(bytesMemory, bytesMemoryOfCaller),
	}
}

// forBody is the memory for bodies of n bytes.
func (m *memory) forBody(n int64) *memoryPool {
	switch {
	case n <= maxTiny:
		return m.tinyBodies
	case n <= maxSmall:
		return m.smallBodies
	}
	return m.largeBodies
}

// forAnswer is the memory for answers that begin with a reservation of n bytes.
func (m *memory) forAnswer(n int64) *memoryPool {
	if n > maxSmall {
		return m.largeAnswers
	}
	return m.smallAnswers
}

// memoryPool bounds the bytes that requests hold at one time: those of all callers together, and
// those of each caller. If it is full, slow transfers are cut, so that those who do not read or do
// not send cannot stop the others.
type memoryPool struct {
	all             *semaphore.Weighted
	size, perCaller int64

	mu     sync.Mutex // guards what follows
	shares map[string]*memoryShare
	spare  []*memoryShare // unused, for the next callers; at most maxSpare
	// The transfers, but not those that pause, in the order of transfer.began.
	oldest, newest *reservation
	checked        time.Time // when slow ones were last looked for
}

const maxSpare = 256

// memoryShare is the share of one caller that has requests.
type memoryShare struct {
	bytes *semaphore.Weighted
	users int // requests that have a reservation or wait for one
}

func newMemoryPool(all, perCaller int64) *memoryPool {
	return &memoryPool{all: semaphore.NewWeighted(all), size: all, perCaller: perCaller, shares: map[string]*memoryShare{}}
}

// reserve reserves n bytes, at most the caller's share, and sets r. Errors: limited, if the caller's
// other requests use too much of its share for too long; busy, if all callers together use too much.
func (p *memoryPool) reserve(ctx context.Context, r *reservation, caller, address string, n int64) error {
	*r = reservation{pool: p, caller: caller, address: address, share: p.acquireShare(caller)}
	err := r.acquire(ctx, n)
	if err != nil {
		r.release()
	}
	return err
}

// tryReserve is reserve, but does not wait. It reports whether there was memory.
func (p *memoryPool) tryReserve(r *reservation, caller, address string, n int64) bool {
	*r = reservation{pool: p, caller: caller, address: address, share: p.acquireShare(caller)}
	if !r.tryAcquire(n) {
		r.release()
		return false
	}
	return true
}

func (p *memoryPool) acquireShare(caller string) *memoryShare {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.checked) >= checkSlowEvery {
		p.cutSlow(now, 0)
	}
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

// makeSpace cuts slow transfers until ctx ends, so that n bytes come free.
func (p *memoryPool) makeSpace(ctx context.Context, n int64) {
	tick := time.NewTicker(checkSlowEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.mu.Lock()
		p.cutSlow(time.Now(), n)
		p.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// cutSlow cuts slow transfers: those with which an address exceeds its share, and others until n
// bytes come free. Those go first who hold much for their address and move little. The caller holds
// mu.
func (p *memoryPool) cutSlow(now time.Time, n int64) {
	p.checked = now
	var slow []*reservation
	held := map[string]holding{} // of each address
	for r := p.oldest; r != nil && now.Sub(r.transfer.began) >= slowAfter; r = r.transfer.next {
		if r.transfer.evicted { // its memory comes free in a moment
			n -= r.n
			continue
		}
		slow = append(slow, r)
		held[r.address] = held[r.address].plus(r.n, 1)
	}
	weight := func(r *reservation) float64 { return float64(held[r.address].bytes) / (r.transfer.speed(now) + kib) }
	slices.SortFunc(slow, func(a, b *reservation) int {
		switch x, y := weight(a), weight(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, r := range slow {
		of := held[r.address]
		if n <= 0 && of.bytes <= p.size/slowShare && of.transfers <= maxSlowOfAddress {
			continue
		}
		n -= r.n
		held[r.address] = of.plus(-r.n, -1)
		r.transfer.evicted = true
		r.transfer.cut()
	}
}

// holding is what the slow transfers of an address hold.
type holding struct {
	bytes     int64
	transfers int
}

func (h holding) plus(bytes int64, transfers int) holding {
	return holding{h.bytes + bytes, h.transfers + transfers}
}

// reservation is the memory that one request has reserved, until release. The zero reservation is
// empty. It must not be copied once it has a transfer.
type reservation struct {
	pool            *memoryPool
	caller, address string
	share           *memoryShare // nil: nothing is reserved
	n               int64        // changed under the pool's mu during a transfer
	buffer          *[]byte      // goes back to the pool of buffers on release, if not nil
	transfer        transfer
}

// tryAcquire reserves n more bytes if they are free.
func (r *reservation) tryAcquire(n int64) bool {
	if !r.share.bytes.TryAcquire(n) {
		return false
	}
	if !r.pool.all.TryAcquire(n) {
		r.share.bytes.Release(n)
		return false
	}
	r.add(n)
	return true
}

// acquire reserves n more bytes. The errors are those of [memoryPool.reserve]. A transfer stands
// still meanwhile, and does not count as slow.
func (r *reservation) acquire(ctx context.Context, n int64) error {
	if r.tryAcquire(n) { // nearly always
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxMemoryWait)
	defer cancel()
	defer r.pause()()
	if err := r.share.bytes.Acquire(ctx, n); err != nil {
		return limited{after: time.Second}
	}
	return r.acquireAll(ctx, n)
}

// acquireSoon is acquire for a request that holds a connection of the database. It does not wait
// for the caller's other requests.
func (r *reservation) acquireSoon(ctx context.Context, n int64) error {
	if r.tryAcquire(n) { // nearly always
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxGrowthWait)
	defer cancel()
	if !r.share.bytes.TryAcquire(n) {
		return limited{after: time.Second}
	}
	return r.acquireAll(ctx, n)
}

// acquireAll reserves n bytes of the memory of all, which the caller's share has already.
func (r *reservation) acquireAll(ctx context.Context, n int64) error {
	waiting, done := context.WithCancel(ctx)
	defer done()
	go r.pool.makeSpace(waiting, n)
	if err := r.pool.all.Acquire(ctx, n); err != nil {
		r.share.bytes.Release(n)
		return busy{after: time.Second}
	}
	r.add(n)
	return nil
}

func (r *reservation) add(n int64) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.n += n
}

// shrink gives back all but n bytes.
func (r *reservation) shrink(n int64) {
	if n >= r.n {
		return
	}
	r.share.bytes.Release(r.n - n)
	r.pool.all.Release(r.n - n)
	r.add(n - r.n)
}

// release gives everything back.
func (r *reservation) release() {
	if r.share == nil {
		return
	}
	r.giveBuffer()
	r.shrink(0)
	r.pool.releaseShare(r.caller)
	r.share = nil
}

// giveBuffer gives the buffer back, and keeps the memory reserved.
func (r *reservation) giveBuffer() {
	if r.buffer != nil {
		giveBuffer(r.buffer)
		r.buffer = nil
	}
}

// transfer is the time in which reserved memory waits for its client, which sends a body or reads
// an answer. The pool's mu guards it.
type transfer struct {
	setDeadline func(time.Time) error // of the connection; nil: there is no transfer
	pace        transferPace
	began       time.Time // pauses do not count
	since       time.Time // the pace counts from here
	paused      time.Time // zero: it does not pause
	moved       int64     // bytes
	evicted     bool
	prev, next  *reservation

	// The speed is measured from a mark to the next, which is a second later or more.
	mark    time.Time
	atMark  int64 // moved at the mark
	perMark float64
}

// transferPace is how fast a client has to be: nothing moves for at most grace, and after it
// perSecond bytes move on average.
type transferPace struct {
	grace     time.Duration
	perSecond int64
}

// begin begins a transfer on a connection. setDeadline sets the deadline of the connection; the zero
// time is none.
func (r *reservation) begin(setDeadline func(time.Time) error, pace transferPace) {
	now := time.Now()
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.transfer = transfer{setDeadline: setDeadline, pace: pace, began: now, since: now, mark: now}
	r.enlist()
	r.transfer.extend(now)
}

// enlist puts the transfer into the pool's list, by the time when it began. The caller holds mu.
func (r *reservation) enlist() {
	p, t := r.pool, &r.transfer
	t.prev, t.next = p.newest, nil
	for t.prev != nil && t.prev.transfer.began.After(t.began) { // it has paused
		t.prev, t.next = t.prev.transfer.prev, t.prev
	}
	if t.prev != nil {
		t.prev.transfer.next = r
	} else {
		p.oldest = r
	}
	if t.next != nil {
		t.next.transfer.prev = r
	} else {
		p.newest = r
	}
}

// delist undoes enlist.
func (r *reservation) delist() {
	p, t := r.pool, &r.transfer
	if t.prev != nil {
		t.prev.transfer.next = t.next
	} else {
		p.oldest = t.next
	}
	if t.next != nil {
		t.next.transfer.prev = t.prev
	} else {
		p.newest = t.prev
	}
	t.prev, t.next = nil, nil
}

// progress counts n bytes that have moved, and gives the client time for the next ones. Without a
// transfer it does nothing.
func (r *reservation) progress(n int64) {
	now := time.Now()
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	t := &r.transfer
	if t.setDeadline == nil {
		return
	}
	t.moved += n
	if now.Sub(t.mark) >= time.Second {
		t.perMark, t.mark, t.atMark = t.speed(now), now, t.moved
	}
	t.extend(now)
}

// pause takes a transfer out of the pool's list until the returned function is called. The client
// cannot do anything meanwhile.
func (r *reservation) pause() (resume func()) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if r.transfer.setDeadline == nil {
		return func() {}
	}
	r.delist()
	r.transfer.paused = time.Now()
	return func() {
		now := time.Now()
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		t := &r.transfer
		if t.setDeadline == nil { // it has ended
			return
		}
		pause := now.Sub(t.paused)
		t.since, t.began, t.mark, t.paused = t.since.Add(pause), t.began.Add(pause), t.mark.Add(pause), time.Time{}
		r.enlist()
		t.extend(now)
	}
}

// end ends the transfer. It removes the deadline if all has moved: otherwise the connection is of no
// use any more. It reports whether the transfer was cut to make space.
func (r *reservation) end(complete bool) (evicted bool) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	t := &r.transfer
	if t.setDeadline == nil {
		return false
	}
	if t.paused.IsZero() {
		r.delist()
	}
	evicted = t.evicted
	if complete {
		t.set(time.Time{})
	}
	*t = transfer{}
	return evicted
}

// extend sets the deadline for the next bytes, unless the transfer was cut.
func (t *transfer) extend(now time.Time) {
	if t.evicted {
		return
	}
	deadline := t.since.Add(t.pace.grace + time.Duration(float64(t.moved)/float64(t.pace.perSecond)*float64(time.Second)))
	if soonest := now.Add(t.pace.grace); soonest.Before(deadline) { // a quick start earns no pause
		deadline = soonest
	}
	t.set(deadline)
}

// speed is how many bytes per second have moved lately.
func (t *transfer) speed(now time.Time) float64 {
	if since := now.Sub(t.mark); since >= time.Second {
		return float64(t.moved-t.atMark) / since.Seconds()
	}
	return t.perMark
}

// cut makes what the client is waited for fail at once.
func (t *transfer) cut() { t.set(time.Unix(1, 0)) }

// set sets the deadline. If it cannot, the connection has ended, and its next use says so.
func (t *transfer) set(deadline time.Time) { _ = t.setDeadline(deadline) }
