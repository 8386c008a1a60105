// Package outgoing makes calls of hosts that others choose: receivers of pushes, and other delivery
// services. Places bounds how many calls run at once, and remembers which hosts fail. Queue makes an
// attempt at a job under a lease, and decides when the next attempt is due. The jobs, and the SQL
// that takes, postpones and ends them, belong to the packages that own their tables.
package outgoing

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// maxRemembered bounds the hosts that a node remembers. A forgotten host counts as never called.
const maxRemembered = 8192

// Pool is a kind of calls with places of its own, so that it never waits for other kinds.
type Pool struct {
	Name string
	Size int // simultaneous calls of a node
	// Unproven bounds the simultaneous calls to all hosts that are not proven, and Trial those to one
	// such host. So hosts that always answer always have places. 0 means no bound.
	Unproven, Trial int
	// A circuit opens after Failures consecutive failures. The host is then not called for FirstOpen.
	// After that, one call of at most Timeout probes the host. Each failed probe doubles the time, up
	// to LastOpen.
	Failures            int
	FirstOpen, LastOpen time.Duration
	Timeout             time.Duration
	// OnceProven says that a host stays proven although later calls fail.
	OnceProven bool
	// Rate bounds calls further, if it is not nil. It is asked when there is a place, and returns how
	// long a call must wait. proven is that of the host.
	Rate func(caller, host string, proven bool) (wait time.Duration)
}

// Call is a call to be made.
type Call struct {
	Pool   *Pool
	Caller string // who pays for the call; "" means nobody
	Host   string // who is called; "" means a host that we chose, which has no circuit
}

// Place is the right to make one call. It must be released.
type Place struct {
	Call
	places   *Places
	Unproven bool // the place counts as unproven
	probe    bool // the call probes an open circuit
}

// Verdict is the answer to a call.
type Verdict int

const (
	Admitted Verdict = iota
	Full             // the pool has no place
	Busy             // the caller or the host has enough calls, or the places of unproven hosts are taken
	Limited          // the pool's Rate makes it wait
	Open             // the host's circuit is open
)

// Result says how a call ended, as far as the host is concerned.
type Result int

const (
	Failed    Result = iota // no answer, or an answer of a server that cannot work
	Answered                // the host works
	Succeeded               // the host has given the right answer
)

// Places bounds the calls of a node, and remembers which hosts fail. Its memory is bounded, because
// others choose the hosts. It is safe for concurrent use.
type Places struct {
	now                func() time.Time
	perCaller, perHost int // simultaneous calls, in all pools together

	mu       sync.Mutex // guards the fields below
	pools    map[*Pool]int
	callers  map[string]int // only those with calls
	hosts    map[string]int // only those with calls
	unproven map[*Pool]int
	circuits *lru.Cache[circuitKey, circuit]
}

// circuitKey names a circuit. Each pool has its own circuits, because a host that refuses one kind of
// calls can still get calls of another kind.
type circuitKey struct {
	pool *Pool
	host string
}

// circuit is what a node remembers about a host.
type circuit struct {
	proven   bool // the last call did not fail; with OnceProven, one has succeeded
	failures int  // consecutive failures
	until    time.Time
	probing  bool
}

// NewPlaces returns places. One caller, and one host, has at most so many simultaneous calls.
func NewPlaces(now func() time.Time, perCaller, perHost int) *Places {
	circuits, err := lru.New[circuitKey, circuit](maxRemembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Places{now: now, perCaller: perCaller, perHost: perHost, pools: map[*Pool]int{}, callers: map[string]int{},
		hosts: map[string]int{}, unproven: map[*Pool]int{}, circuits: circuits}
}

// Acquire takes a place for a call. If the verdict is Limited or Open, the call must not be made
// before wait is over.
func (s *Places) Acquire(c Call) (p Place, v Verdict, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = Place{Call: c, places: s}
	if s.pools[c.Pool] >= c.Pool.Size {
		return p, Full, 0
	}
	host, _ := s.circuits.Get(c.circuit())
	if wait := s.openFor(c.Pool, host); wait > 0 && c.Host != "" {
		return p, Open, wait
	}
	p.Unproven = c.Pool.Unproven > 0 && !host.proven
	if s.busy(p) {
		return p, Busy, 0
	}
	if c.Pool.Rate != nil {
		if wait := c.Pool.Rate(c.Caller, c.Host, host.proven); wait > 0 {
			return p, Limited, wait
		}
	}
	if p.probe = c.Host != "" && host.failures >= c.Pool.Failures; p.probe {
		host.probing = true
		s.circuits.Add(c.circuit(), host)
	}
	s.count(p, 1)
	return p, Admitted, 0
}

// busy reports whether enough calls like p are running. The caller holds s.mu.
func (s *Places) busy(p Place) bool {
	switch {
	case p.Caller != "" && s.callers[p.Caller] >= s.perCaller, p.Host != "" && s.hosts[p.Host] >= s.perHost:
		return true
	case !p.Unproven:
		return false
	}
	return s.unproven[p.Pool] >= p.Pool.Unproven || p.Pool.Trial > 0 && s.hosts[p.Host] >= p.Pool.Trial
}

// openFor returns how long a circuit stays open, or 0. While a probe runs, the circuit is open for
// the time that a call can take.
func (s *Places) openFor(pool *Pool, c circuit) time.Duration {
	switch {
	case c.failures < pool.Failures:
		return 0
	case c.probing:
		return max(pool.Timeout, c.until.Sub(s.now()))
	}
	return max(0, c.until.Sub(s.now()))
}

// Report records how the call ended.
func (p Place) Report(r Result) {
	if p.Host == "" {
		return
	}
	s := p.places
	s.mu.Lock()
	defer s.mu.Unlock()
	c, _ := s.circuits.Get(p.circuit())
	if r != Failed {
		s.circuits.Add(p.circuit(), circuit{proven: r == Succeeded || c.proven})
		return
	}
	c.proven = c.proven && p.Pool.OnceProven
	// A call that was already running when the circuit opened does not extend it.
	if p.probe || c.failures < p.Pool.Failures {
		c.failures++
		if over := c.failures - p.Pool.Failures; over >= 0 {
			c.until = s.now().Add(min(p.Pool.FirstOpen<<min(over, 10), p.Pool.LastOpen))
		}
	}
	c.probing = c.probing && !p.probe
	s.circuits.Add(p.circuit(), c)
}

// Release gives the place back, after Report or without a call.
func (p Place) Release() {
	s := p.places
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(p, -1)
	if c, ok := s.circuits.Peek(p.circuit()); ok && p.probe {
		c.probing = false
		s.circuits.Add(p.circuit(), c)
	}
}

// count adds n to the calls that are running. The caller holds s.mu.
func (s *Places) count(p Place, n int) {
	s.pools[p.Pool] += n
	if p.Unproven {
		s.unproven[p.Pool] += n
	}
	add(s.callers, p.Caller, n)
	add(s.hosts, p.Host, n)
}

func add(counts map[string]int, key string, n int) {
	if key == "" {
		return
	}
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// Exhausted reports whether a pool has no free place.
func (s *Places) Exhausted(pool *Pool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[pool] >= pool.Size
}

// Hosts returns the hosts of a pool that are proven, and those that cannot be called now.
func (s *Places) Hosts(pool *Pool) (proven, paused []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proven, paused = []string{}, []string{}
	for _, key := range s.circuits.Keys() {
		c, _ := s.circuits.Peek(key)
		switch {
		case key.pool != pool:
			continue
		case c.proven:
			proven = append(proven, key.host)
		}
		if s.openFor(pool, c) > 0 {
			paused = append(paused, key.host)
		}
	}
	for host := range s.hosts {
		c, _ := s.circuits.Peek(circuitKey{pool, host})
		if s.busy(Place{Call: Call{Pool: pool, Host: host}, Unproven: pool.Unproven > 0 && !c.proven}) {
			paused = append(paused, host)
		}
	}
	return proven, paused
}

func (c Call) circuit() circuitKey { return circuitKey{c.Pool, c.Host} }
