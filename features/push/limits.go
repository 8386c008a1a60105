package push

import (
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"mlsd/features/outgoing"
	"mlsd/internal/limit"
)

const (
	// perDID and perHost bound the simultaneous calls of one node, including challenges.
	perDID  = 4
	perHost = 4

	// unproven bounds the simultaneous calls of one node to hosts of URLs that were never called, or
	// whose last call did not succeed. So hosts that always answer always have places. Each kind has
	// the bound for itself.
	unproven = poolSize / 2

	// A circuit opens after failuresToOpen consecutive failures. The host is then not called for
	// firstOpen. After that, one call probes the host. Each failed probe doubles the time, up to
	// lastOpen.
	failuresToOpen = 5
	firstOpen      = 5 * time.Second
	lastOpen       = 5 * time.Minute

	// maxRemembered bounds the hosts and the DIDs whose challenges a node counts.
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

// pools has the places of a worker by kind of work. Jobs without a target have the kind "": they end
// without a call.
type pools struct {
	*outgoing.Places
	byKind     map[Kind]*outgoing.Pool
	challenges *outgoing.Pool
	rates      *limit.Buckets[string] // of challenges, by DID and by host
}

// poolSize is how many places each pool has, per node.
const poolSize = 32

func newPools(now func() time.Time, webhooks time.Duration) *pools {
	p := &pools{Places: outgoing.NewPlaces(now, perDID, perHost), rates: limit.NewBuckets[string](maxRemembered, now)}
	pool := outgoing.Pool{Size: poolSize, Failures: failuresToOpen, FirstOpen: firstOpen, LastOpen: lastOpen,
		Timeout: webhooks}
	none, apns, webhook, browser, challenge := pool, pool, pool, pool, pool
	none.Name, apns.Name, webhook.Name, browser.Name = "", string(KindAPNs), string(KindWebhook), string(KindWebPush)
	challenge.Name = "challenge"
	none.Timeout, apns.Timeout = 0, apnsTimeout
	webhook.Unproven, browser.Unproven = unproven, unproven
	challenge.OnceProven, challenge.Rate = true, p.chargeChallenge
	p.byKind = map[Kind]*outgoing.Pool{"": &none, KindAPNs: &apns, KindWebhook: &webhook, KindWebPush: &browser}
	p.challenges = &challenge
	return p
}

// of returns as what a call of a target counts. A kind that this version does not know has the places
// of jobs without a target.
func (p *pools) of(t Target) outgoing.Call {
	if pool := p.byKind[t.Kind]; pool != nil && t.Kind != "" {
		return outgoing.Call{Pool: pool, Caller: t.DID.String(), Host: t.host()}
	}
	return outgoing.Call{Pool: p.byKind[""]}
}

// exhausted returns the kinds without a free place.
func (p *pools) exhausted() []string {
	none := []string{}
	for kind, pool := range p.byKind {
		if p.Exhausted(pool) {
			none = append(none, string(kind))
		}
	}
	return none
}

// chargeChallenge counts a challenge for its DID and its host. If one of them has had too many, it
// returns how long to wait.
func (p *pools) chargeChallenge(did, host string, proven bool) time.Duration {
	if _, ok := p.rates.Take(did, challengesOfDID, 1); !ok {
		return waitOfDID
	}
	ofHost := challengesUnknown
	if proven {
		ofHost = challengesKnown
	}
	if _, ok := p.rates.Take("host "+host, ofHost, 1); !ok {
		return waitOfHost
	}
	return 0
}

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
