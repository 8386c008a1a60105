package limit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxWait is how long a reservation waits for memory.
	maxWait = 5 * time.Second
	// maxGrowthWait is how long [Reservation.GrowSoon] waits for memory.
	maxGrowthWait = 2 * time.Second
)

// Limits of slow clients. A transfer counts as slow after slowAfter.
const (
	slowAfter = time.Second
	// slowShare is the part of a pool (one in slowShare) that slow transfers of one address can
	// hold. Quick transfers have no such limit, because all users of a PDS share its address.
	slowShare = 4
	// maxSlowOfAddress is how many slow transfers an address can have in one pool.
	maxSlowOfAddress = 256
	// checkSlowEvery is how often a pool looks for slow transfers.
	checkSlowEvery = 100 * time.Millisecond
)

// Memory is a pool of bytes. It bounds the memory of requests at one time, for all callers together
// and for each caller. Large requests can use only a part of the pool, so that some memory stays
// for small requests. When the pool is full, slow transfers are cut, so that slow clients cannot
// stop others.
type Memory struct {
	bounds []*bound // the first bound is for all requests, the last for the largest

	mu sync.Mutex // guards the fields below
	// The transfers that do not pause, in the order of transfer.began.
	oldest, newest *Reservation
	checked        time.Time   // when the pool last looked for slow transfers
	waiting        int         // requests that wait for memory
	makingSpace    *time.Timer // calls makeSpace; stopped if no request waits
}

// Bound bounds requests that may need more than Above bytes: Size is for all callers together,
// Share for one caller, both in bytes.
type Bound struct{ Above, Size, Share int64 }

// bound is a Bound with the memory that is used.
type bound struct {
	above int64
	queue Queue
}

// NewMemory returns a pool. The first bound applies to all requests. Each further bound applies to
// larger requests than the previous bound.
func NewMemory(bounds ...Bound) *Memory {
	m := &Memory{}
	for _, b := range bounds {
		m.bounds = append(m.bounds, &bound{above: b.Above, queue: Queue{Size: b.Size, Share: b.Share}})
	}
	return m
}

// Client is who a reservation is for. An address has a limit only on the memory of its slow
// transfers.
type Client struct{ Key, Address string }

// Reserve reserves n bytes for a request that may need most, and sets r. The error is *[RefusedError].
func (m *Memory) Reserve(ctx context.Context, r *Reservation, of Client, most, n int64) error {
	m.begin(r, of, most)
	err := r.Grow(ctx, n)
	if err != nil {
		r.Release()
	}
	return err
}

// TryReserve is Reserve, but it does not wait. It reports whether there was memory.
func (m *Memory) TryReserve(r *Reservation, of Client, most, n int64) bool {
	m.begin(r, of, most)
	if !r.tryGrow(n) {
		r.Release()
		return false
	}
	return true
}

// begin makes r a reservation of nothing. What r held before is given back.
func (m *Memory) begin(r *Reservation, of Client, most int64) {
	r.Release()
	*r = Reservation{memory: m, client: of, bounds: 1}
	for _, b := range m.bounds[1:] {
		if b.above < most {
			r.bounds++
		}
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.checked) >= checkSlowEvery {
		m.cutSlow(now)
	}
}

// Used returns how many bytes are reserved.
func (m *Memory) Used() int64 {
	units, _ := m.bounds[0].queue.Used()
	return units
}

// wait counts a request that waits for memory, until done. While requests wait, the pool cuts slow
// transfers.
func (m *Memory) wait() (done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting++
	if m.waiting == 1 {
		m.cutSlow(time.Now())
		m.makingSpace = time.AfterFunc(checkSlowEvery, m.makeSpace)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting--
		if m.waiting == 0 {
			m.makingSpace.Stop()
		}
	}
}

// makeSpace cuts slow transfers, and comes back if requests still wait for memory.
func (m *Memory) makeSpace() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting > 0 {
		m.cutSlow(time.Now())
		m.makingSpace.Reset(checkSlowEvery)
	}
}

// cutSlow cuts slow transfers that exceed the share of their address. It cuts other slow transfers
// until the waiting requests fit. A transfer is cut earlier if it is slower, or if the slow
// transfers of its address hold more. The caller holds mu.
func (m *Memory) cutSlow(now time.Time) {
	m.checked = now
	var slow []*Reservation
	held := map[string]holding{} // by address
	missing := m.missing()
	for r := m.oldest; r != nil && now.Sub(r.transfer.began) >= slowAfter; r = r.transfer.next {
		if r.transfer.cut { // its memory will soon be free
			missing.comesFree(r)
			continue
		}
		slow = append(slow, r)
		held[r.client.Address] = held[r.client.Address].plus(r.n, 1)
	}
	// must reports whether a transfer is to be cut.
	must := func(r *Reservation) bool {
		of := held[r.client.Address]
		fair := of.bytes <= m.bounds[0].queue.Size/slowShare && of.transfers <= maxSlowOfAddress
		return !fair || missing.inBoundsOf(r)
	}
	if !slices.ContainsFunc(slow, must) {
		return
	}
	weight := func(r *Reservation) float64 {
		return float64(held[r.client.Address].bytes) / (r.transfer.speed(now) + 1024)
	}
	slices.SortFunc(slow, func(a, b *Reservation) int { return cmp.Compare(weight(b), weight(a)) })
	for _, r := range slow {
		if !must(r) {
			continue
		}
		missing.comesFree(r)
		held[r.client.Address] = held[r.client.Address].plus(-r.n, -1)
		r.transfer.cut = true
		r.transfer.set(time.Unix(1, 0)) // reads and writes that wait for the client fail at once
	}
}

// missing is the number of bytes that each bound lacks for the next waiting request.
type missing []int64

func (m *Memory) missing() missing {
	all := make(missing, len(m.bounds))
	for i, b := range m.bounds {
		all[i] = b.queue.Missing()
	}
	return all
}

// comesFree subtracts the bytes of a transfer that is cut.
func (m missing) comesFree(r *Reservation) {
	for i := range r.bounds {
		m[i] -= r.n
	}
}

// inBoundsOf reports whether a bound that includes r lacks bytes.
func (m missing) inBoundsOf(r *Reservation) bool { return slices.Max(m[:r.bounds]) > 0 }

// holding is the memory that the slow transfers of an address hold.
type holding struct {
	bytes     int64
	transfers int
}

func (h holding) plus(bytes int64, transfers int) holding {
	return holding{h.bytes + bytes, h.transfers + transfers}
}

// Reservation is the memory that one request has reserved, until Release. The zero Reservation is
// empty. It must not be copied once a transfer has begun.
type Reservation struct {
	memory   *Memory // nil means that nothing is reserved
	bounds   int     // how many of the first bounds apply to it
	client   Client
	n        int64 // changed under the pool's mu during a transfer
	transfer transfer
}

// Bytes returns how much is reserved.
func (r *Reservation) Bytes() int64 { return r.n }

// Grow reserves n more bytes. During the wait, a transfer is paused and does not count as slow. The
// error is *[RefusedError].
func (r *Reservation) Grow(ctx context.Context, n int64) error {
	return r.grow(ctx, n, maxWait, (*Queue).Acquire)
}

// GrowSoon is Grow for a request that holds a database connection. It waits only briefly, and does
// not wait for other requests of the caller.
func (r *Reservation) GrowSoon(ctx context.Context, n int64) error {
	return r.grow(ctx, n, maxGrowthWait, (*Queue).AcquireOfOthers)
}

// tryGrow reserves n more bytes if they are free.
func (r *Reservation) tryGrow(n int64) bool {
	if n == 0 { // for an empty body
		return true
	}
	for i := r.bounds - 1; i >= 0; i-- {
		if !r.memory.bounds[i].queue.TryAcquire(r.client.Key, n) {
			r.giveBack(i+1, n)
			return false
		}
	}
	r.add(n)
	return true
}

// grow reserves n more bytes, beginning with the narrowest bound.
func (r *Reservation) grow(
	ctx context.Context, n int64, longest time.Duration, acquire func(*Queue, context.Context, string, int64) error,
) error {
	if r.tryGrow(n) { // the usual case
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer r.Pause()()
	defer r.memory.wait()()
	for i := r.bounds - 1; i >= 0; i-- {
		if err := acquire(&r.memory.bounds[i].queue, ctx, r.client.Key, n); err != nil {
			r.giveBack(i+1, n)
			return err
		}
	}
	r.add(n)
	return nil
}

// giveBack returns n bytes to the bounds from index from on.
func (r *Reservation) giveBack(from int, n int64) {
	for i := from; i < r.bounds; i++ {
		r.memory.bounds[i].queue.Release(r.client.Key, n)
	}
}

func (r *Reservation) add(n int64) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	r.n += n
}

// Shrink returns all but n bytes.
func (r *Reservation) Shrink(n int64) {
	if n >= r.n {
		return
	}
	r.giveBack(0, r.n-n)
	r.add(n - r.n)
}

// Release returns all bytes.
func (r *Reservation) Release() {
	if r.memory == nil {
		return
	}
	r.Shrink(0)
	r.memory = nil
}
