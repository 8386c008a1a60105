package push

import (
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/publicsuffix"

	"mlsd/internal/limit"
)

const (
	// perDID and perHost bound the simultaneous calls of one node, including challenges.
	perDID  = 4
	perHost = 4

	// unproven bounds the simultaneous webhook calls of one node to hosts that were never called,
	// or whose last call did not succeed. So hosts that always answer always have places.
	unproven = poolSize / 2

	// A circuit opens after failuresToOpen consecutive failures. The host is then not called for
	// firstOpen. After that, one call probes the host. Each failed probe doubles the time, up to
	// lastOpen.
	failuresToOpen = 5
	firstOpen      = 5 * time.Second
	lastOpen       = 5 * time.Minute

	// maxRemembered bounds the hosts, and the DIDs, that a node remembers. A forgotten host counts
	// as never called.
	maxRemembered = 8192
)

// How many challenges one node makes: for the webhooks of one DID, at a host that has never given a
// right answer, and at a host that has given one. Anybody can name any host, so the second bound
// protects hosts that have nothing to do with this server.
var (
	challengesOfDID   = limit.Rate{PerSecond: 1.0 / 60, Burst: 20}
	challengesUnknown = limit.Rate{PerSecond: 1, Burst: 10}
	challengesKnown   = limit.Rate{PerSecond: 20, Burst: 100}
)

// How long a challenge waits if its DID or its host has had too many challenges.
const (
	waitOfDID  = time.Minute
	waitOfHost = 10 * time.Second
)

// pool is a kind of work with its own places, so that it never waits for other kinds.
type pool string

const (
	poolAPNs      = pool(KindAPNs)
	poolWebhook   = pool(KindWebhook)
	poolChallenge = pool("challenge")
	poolNone      = pool("") // jobs that end without a call
)

// poolSize is how many places each pool has, per node.
const poolSize = 32

// place is the right to make one call. limits has admitted it, and it must be released.
type place struct {
	pool     pool
	did      syntax.DID
	host     string // host of a webhook, as hostOf returns it; "" for other calls
	unproven bool   // the place counts as unproven
	probe    bool   // the call probes an open circuit
}

// verdict is the answer of limits to a call.
type verdict int

const (
	admitted verdict = iota
	full             // the pool has no place
	busy             // the DID or the host has enough calls, or the places of unproven hosts are taken
	limited          // too many challenges
	open             // the host's circuit is open
)

// result says how a call ended, as far as the host is concerned.
type result int

const (
	failed    result = iota // no answer, or an answer of a server that cannot work
	answered                // the host works
	succeeded               // the host has given the right answer
)

// limits bounds the calls of a node and remembers which hosts fail. Its memory is bounded, because
// accounts choose the hosts. It is safe for concurrent use.
type limits struct {
	now func() time.Time

	mu         sync.Mutex // guards the fields below
	pools      map[pool]int
	dids       map[syntax.DID]int // only those with calls
	hosts      map[string]int     // only those with calls
	unproven   int
	circuits   *lru.Cache[circuitKey, circuit]
	challenges *limit.Buckets[string] // by DID and by host
}

// circuitKey names a circuit. Challenges have their own circuits, because a host that refuses
// challenges can still get calls for its other targets.
type circuitKey struct {
	pool pool
	host string
}

// circuit is what a node remembers about a host.
type circuit struct {
	proven   bool // for webhooks, the last call did not fail; for challenges, one has succeeded
	failures int  // consecutive failures
	until    time.Time
	probing  bool
}

func newLimits(now func() time.Time) *limits {
	circuits, err := lru.New[circuitKey, circuit](maxRemembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &limits{
		now: now, pools: map[pool]int{}, dids: map[syntax.DID]int{}, hosts: map[string]int{}, circuits: circuits,
		challenges: limit.NewBuckets[string](maxRemembered, now),
	}
}

// admit takes a place for a call. If the verdict is limited or open, the call must not be made
// before wait is over.
func (l *limits) admit(p place) (_ place, v verdict, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pools[p.pool] >= poolSize {
		return p, full, 0
	}
	if p.pool == poolNone {
		l.pools[p.pool]++
		return p, admitted, 0
	}
	c, _ := l.circuits.Get(p.circuit())
	if wait := l.openFor(c); wait > 0 && p.host != "" {
		return p, open, wait
	}
	p.unproven = p.pool == poolWebhook && !c.proven
	switch {
	case l.dids[p.did] >= perDID, p.host != "" && l.hosts[p.host] >= perHost, p.unproven && l.unproven >= unproven:
		return p, busy, 0
	}
	if p.pool == poolChallenge {
		if wait := l.chargeChallenge(p, c.proven); wait > 0 {
			return p, limited, wait
		}
	}
	if p.probe = c.failures >= failuresToOpen; p.probe {
		c.probing = true
		l.circuits.Add(p.circuit(), c)
	}
	l.count(p, 1)
	return p, admitted, 0
}

// openFor returns how long a circuit stays open, or 0. While a probe runs, the circuit is open for
// the time that a call can take.
func (l *limits) openFor(c circuit) time.Duration {
	switch {
	case c.failures < failuresToOpen:
		return 0
	case c.probing:
		return max(webhookTimeout, c.until.Sub(l.now()))
	}
	return max(0, c.until.Sub(l.now()))
}

// chargeChallenge counts a challenge for its DID and its host. If one of them has had too many, it
// returns how long to wait.
func (l *limits) chargeChallenge(p place, known bool) time.Duration {
	if _, ok := l.challenges.Take(p.did.String(), challengesOfDID, 1); !ok {
		return waitOfDID
	}
	ofHost := challengesUnknown
	if known {
		ofHost = challengesKnown
	}
	if _, ok := l.challenges.Take("host "+p.host, ofHost, 1); !ok {
		return waitOfHost
	}
	return 0
}

// report records how a call ended that was made at an admitted place.
func (l *limits) report(p place, r result) {
	if p.host == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c, _ := l.circuits.Get(p.circuit())
	if r != failed {
		l.circuits.Add(p.circuit(), circuit{proven: r == succeeded || c.proven})
		return
	}
	c.proven = c.proven && p.pool == poolChallenge
	// A call that was already running when the circuit opened does not extend it.
	if p.probe || c.failures < failuresToOpen {
		c.failures++
		if over := c.failures - failuresToOpen; over >= 0 {
			c.until = l.now().Add(min(firstOpen<<min(over, 10), lastOpen))
		}
	}
	c.probing = c.probing && !p.probe
	l.circuits.Add(p.circuit(), c)
}

// release returns a place, after report or without a call.
func (l *limits) release(p place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(p, -1)
	if c, ok := l.circuits.Peek(p.circuit()); ok && p.probe {
		c.probing = false
		l.circuits.Add(p.circuit(), c)
	}
}

// count adds n to the calls that are running. The caller holds l.mu.
func (l *limits) count(p place, n int) {
	l.pools[p.pool] += n
	if p.pool == poolNone {
		return
	}
	if l.dids[p.did] += n; l.dids[p.did] == 0 {
		delete(l.dids, p.did)
	}
	if p.unproven {
		l.unproven += n
	}
	if p.host == "" {
		return
	}
	if l.hosts[p.host] += n; l.hosts[p.host] == 0 {
		delete(l.hosts, p.host)
	}
}

// exhausted returns the pools without a free place.
func (l *limits) exhausted() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	none := []string{}
	for p, n := range l.pools {
		if n >= poolSize {
			none = append(none, string(p))
		}
	}
	return none
}

func (p place) circuit() circuitKey { return circuitKey{p.pool, p.host} }

// hostOf returns the name under which calls of a URL are counted. This is the registrable domain of
// the host, so that all names of one owner count together. If the host is an address, it is the
// address. For a host of this machine, the port is included. Policy.Check must have checked the
// URL.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if loopback(host) {
		return u.Host
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	if domain, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return domain
	}
	return host // the host is a public suffix, or a name without dots
}
