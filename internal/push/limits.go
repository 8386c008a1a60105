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
	// perDID and perHost bound the calls of one node at a time, challenges included.
	perDID  = 4
	perHost = 4

	// unproven bounds the webhook calls of one node at a time to hosts whose last call did not
	// succeed, or that were never called. So hosts that answer always have places.
	unproven = poolSize / 2

	// A circuit opens after failuresToOpen failures in a row. The host is then not called for
	// firstOpen. After that one call probes it. Each probe that fails doubles the time, up to
	// lastOpen.
	failuresToOpen = 5
	firstOpen      = 5 * time.Second
	lastOpen       = 5 * time.Minute

	// maxRemembered bounds the hosts, and the DIDs, that a node remembers. A forgotten host counts
	// as never called.
	maxRemembered = 8192
)

// Challenges of one node: for the webhooks of one DID, at one host that has never given a right
// answer, and at one that has. Anybody can name any host, so the second is what a host suffers that
// wants nothing of this server.
var (
	challengesOfDID   = limit.Rate{PerSecond: 1.0 / 60, Burst: 20}
	challengesUnknown = limit.Rate{PerSecond: 1, Burst: 10}
	challengesKnown   = limit.Rate{PerSecond: 20, Burst: 100}
)

// How long a challenge waits that is one too many for its DID, or for its host.
const (
	waitOfDID  = time.Minute
	waitOfHost = 10 * time.Second
)

// pool is a kind of work that has places of its own, so that it never waits for the others.
type pool string

const (
	poolAPNs      = pool(KindAPNs)
	poolWebhook   = pool(KindWebhook)
	poolChallenge = pool("challenge")
	poolNone      = pool("") // jobs that end without a call
)

// poolSize is how many places each pool has, per node.
const poolSize = 32

// place is the right to make one call. It has been admitted by limits and must be released.
type place struct {
	pool     pool
	did      syntax.DID
	host     string // of a webhook, as hostOf returns it; else empty
	unproven bool   // it counts as unproven
	probe    bool   // it is the one call that probes an open circuit
}

// verdict is what limits says about a call.
type verdict int

const (
	admitted verdict = iota
	full             // the pool has no place
	busy             // the DID or the host has enough calls, or the places of unproven hosts are taken
	limited          // too many challenges
	open             // the host's circuit is open
)

// result is how a call ended, as far as its host is concerned.
type result int

const (
	failed    result = iota // no answer, or that of a server that cannot work
	answered                // the host works
	succeeded               // it has given the right answer
)

// limits bounds the calls of a node and remembers which hosts fail. Its memory is bounded, because
// accounts choose the hosts. It is safe for concurrent use.
type limits struct {
	now func() time.Time

	mu         sync.Mutex // guards what follows
	pools      map[pool]int
	dids       map[syntax.DID]int // only those with calls
	hosts      map[string]int     // only those with calls
	unproven   int
	circuits   *lru.Cache[circuitKey, circuit]
	challenges *limit.Buckets[string] // by DID and by host
}

// circuitKey names a circuit. Challenges have their own: a host that refuses them can still get
// calls for its other targets.
type circuitKey struct {
	pool pool
	host string
}

// circuit is what a node remembers of a host.
type circuit struct {
	proven   bool // webhooks: the last call did not fail; challenges: one has succeeded
	failures int  // in a row
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

// admit takes a place for a call. If the verdict is limited or open, the call is not to be made
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

// openFor returns how long a circuit stays open, or 0. While a probe runs it is open for the time
// that a call can take.
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

// report says how a call ended that was made at an admitted place.
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
	// A call that was running already when the circuit opened does not prolong it.
	if p.probe || c.failures < failuresToOpen {
		c.failures++
		if over := c.failures - failuresToOpen; over >= 0 {
			c.until = l.now().Add(min(firstOpen<<min(over, 10), lastOpen))
		}
	}
	c.probing = c.probing && !p.probe
	l.circuits.Add(p.circuit(), c)
}

// release gives back a place, after report or without a call.
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

// exhausted returns the pools that have no place.
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

// hostOf returns whom calls of a URL are counted for: the registrable domain of its host, so that
// other names of the same owner do not count apart. It is the address if the host is one, and a
// host of this machine counts with its port. The URL has been checked by Policy.Check.
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
	return host // a public suffix itself, or a name without dots
}
