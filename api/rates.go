package api

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/labstack/echo/v4"

	"mlsd/internal/limit"
)

// Rate is the rate of a token bucket. A request costs one unit or more: the field cost in
// methods.go, and what [call.spend] adds.
type Rate = limit.Rate

// Rates are the limits of the public listener. All users of a PDS share its address, so people are
// limited by DID. Addresses are limited only for requests without a verified caller.
type Rates struct {
	DID Rate
	IP  Rate
}

func (r Rates) check() error {
	for _, of := range []Rate{r.DID, r.IP} {
		if of.PerSecond <= 0 || of.Burst <= 0 {
			return fmt.Errorf("a rate limit must be positive, not %g/s with a burst of %d", of.PerSecond, of.Burst)
		}
	}
	return nil
}

// maxBuckets bounds how many callers, and how many addresses, the limiter remembers.
const maxBuckets = 100_000

// limiter bounds the requests of callers and of addresses.
type limiter struct {
	rates   Rates
	percent func(did syntax.DID) int // percentage of the rate that the account has
	dids    *limit.Buckets[syntax.DID]
	ips     *limit.Buckets[string] // keyed by call.address
	proxies []netip.Prefix
}

func newLimiter(rates Rates, percent func(syntax.DID) int, proxies []netip.Prefix) *limiter {
	return &limiter{
		rates: rates, percent: percent, proxies: proxies,
		dids: limit.NewBuckets[syntax.DID](maxBuckets, time.Now), ips: limit.NewBuckets[string](maxBuckets, time.Now),
	}
}

// rateOf is the rate of an account.
func (l *limiter) rateOf(did syntax.DID) Rate {
	percent := l.percent(did)
	return Rate{PerSecond: l.rates.DID.PerSecond * float64(percent) / 100, Burst: max(l.rates.DID.Burst*percent/100, 1)}
}

// take takes the units of one request from an account. The answer's headers say what is left.
func (l *limiter) take(c echo.Context, did syntax.DID, units int) error {
	level, ok := l.dids.Take(did, l.rateOf(did), units)
	describe(c, level)
	if !ok {
		return limited{after: level.Wait(min(units, level.Burst))}
	}
	return nil
}

// charge takes units from an account even if fewer are left, and returns what is left.
func (l *limiter) charge(did syntax.DID, units int) limit.Level {
	return l.dids.Charge(did, l.rateOf(did), units)
}

// checkAddress refuses an address that has no units left.
func (l *limiter) checkAddress(c echo.Context, address string) error {
	level := l.ips.Level(address, l.rates.IP)
	if level.Left >= 1 {
		return nil
	}
	describe(c, level)
	return limited{after: level.Wait(1)}
}

// chargeAddress charges an address for one request without a verified caller.
func (l *limiter) chargeAddress(address string) { l.ips.Charge(address, l.rates.IP, 1) }

// page wraps handle for requests without a caller, and charges them to their address. They have
// buckets of their own, so that unauthenticated callers of methods cannot keep anybody from asking
// whether the node is there. The health checks of the operator's proxies have no limit, because a
// proxy takes a node out of service when a health check is refused.
func (l *limiter) page(handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if ip, err := netip.ParseAddr(c.RealIP()); err == nil && limit.Within(ip, l.proxies) {
			return handle(c)
		}
		address := "page " + limit.Network(c.RealIP())
		if err := l.checkAddress(c, address); err != nil {
			return err
		}
		l.chargeAddress(address)
		return handle(c)
	}
}

// describe sets the headers of an answer.
func describe(c echo.Context, level limit.Level) {
	left := max(0, level.Left)
	full := (float64(level.Burst) - left) / level.PerSecond
	values := []string{strconv.Itoa(level.Burst), strconv.Itoa(int(left)), strconv.Itoa(seconds(full))}
	h := c.Response().Header()
	for i, name := range limitHeaders {
		h[name] = values[i : i+1 : i+1]
	}
}

// limitHeaders are the names of three headers: the size of the bucket, the units left in it, and
// the seconds until it is full. They have net/http's canonical form, so they can be set without
// conversion.
var limitHeaders = [...]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}

// unitBytes is how many bytes of a body or an answer cost one unit.
const unitBytes = mib

// spend adds units to what a request costs its caller. A unit is the cost of an ordinary request,
// or of two milliseconds of verification. The caller pays after the request, even if the request
// fails.
func (c *call) spend(units int) { c.charged += units }

// charge makes the caller pay what its request has cost, in addition to the method's cost.
func (s *Server) charge(cl *call) {
	units := cl.charged + len(cl.answer)/unitBytes
	if cl.caller == "" || units == 0 {
		return
	}
	describe(cl.http, s.handlers.rates.charge(cl.caller, units))
}

// seconds rounds up to whole seconds.
func seconds(s float64) int { return int(math.Ceil(s)) }

// setRetryAfter sets the header to whole seconds, at least one.
func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, seconds(after.Seconds()))))
}
