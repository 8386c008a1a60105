package api

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Rate is a token bucket: PerSecond units on average, Burst at once. A request costs one unit or
// more: the column cost in methods.go, and what [call.spend] adds.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Rates are the limits of the public listener. All users of a PDS share its address, so a person is
// limited by DID. An address is limited only by requests without a verified caller.
type Rates struct {
	DID Rate
	IP  Rate
}

// maxBuckets bounds the callers that one limiter remembers. A forgotten caller starts with a full
// bucket.
const maxBuckets = 100_000

// limiter holds a token bucket per caller.
type limiter struct {
	rate     Rate
	bucketOf func(caller string) string // callers with the same result share a bucket
	percent  func(caller string) int    // of rate that the caller has
	buckets  *lru.Cache[string, *bucket]
}

// bucket is the token bucket of a caller.
type bucket struct {
	*rate.Limiter
	percent int    // of the limiter's rate
	size    int    // in units
	limit   string // the size, as the header has it
}

func newLimiter(r Rate, bucketOf func(string) string, percent func(string) int) (*limiter, error) {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		return nil, fmt.Errorf("a rate limit must be positive, not %g/s with a burst of %d", r.PerSecond, r.Burst)
	}
	buckets, err := lru.New[string, *bucket](maxBuckets)
	if err != nil {
		return nil, fmt.Errorf("make a rate limiter: %w", err)
	}
	return &limiter{rate: r, bucketOf: bucketOf, percent: percent, buckets: buckets}, nil
}

// take takes the units of one request from the caller's bucket, or all if the bucket is smaller. The
// answer's headers say what is left.
func (l *limiter) take(c echo.Context, caller string, units int) error {
	b := l.bucket(caller)
	units = min(units, b.size)
	allowed := b.AllowN(time.Now(), units)
	left := b.Tokens()
	b.describe(c, left)
	if allowed {
		return nil
	}
	return limited{after: b.wait(left, units)}
}

// check refuses a caller whose bucket is empty. It takes nothing.
func (l *limiter) check(c echo.Context, caller string) error {
	b := l.bucket(caller)
	left := b.Tokens()
	if left >= 1 {
		return nil
	}
	b.describe(c, left)
	return limited{after: b.wait(left, 1)}
}

// describe sets the headers of an answer. left are the units in the bucket.
func (b *bucket) describe(c echo.Context, left float64) {
	left = max(0, left)
	values := []string{b.limit, strconv.Itoa(int(left)), strconv.Itoa(seconds((float64(b.size) - left) / float64(b.Limit())))}
	h := c.Response().Header()
	for i, name := range limitHeaders {
		h[name] = values[i : i+1 : i+1]
	}
}

// limitHeaders are the size of the bucket, the units that are left in it, and the seconds until
// it is full. They have net/http's canonical form, so they can be set without conversion.
var limitHeaders = [...]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}

// charge takes units from the caller's bucket, even if it has fewer. It returns the bucket, and how
// many are left. A caller's debt is at most a whole bucket.
func (l *limiter) charge(caller string, units int) (b *bucket, left float64) {
	b, now := l.bucket(caller), time.Now()
	for left = b.TokensAt(now); units > 0 && left > -float64(b.size); left = b.TokensAt(now) {
		n := min(units, b.size)
		b.ReserveN(now, n)
		units -= n
	}
	return b, left
}

// bucket returns the caller's bucket. When an operator changes the caller's percentage, it gets a full
// one of the new size.
func (l *limiter) bucket(caller string) *bucket {
	caller, percent := l.bucketOf(caller), l.percent(caller)
	known, ok := l.buckets.Get(caller)
	if ok && known.percent == percent {
		return known
	}
	size := max(l.rate.Burst*percent/100, 1)
	fresh := &bucket{
		Limiter: rate.NewLimiter(rate.Limit(l.rate.PerSecond*float64(percent)/100), size),
		percent: percent, size: size, limit: strconv.Itoa(size),
	}
	if ok {
		l.buckets.Add(caller, fresh)
		return fresh
	}
	if other, raced, _ := l.buckets.PeekOrAdd(caller, fresh); raced {
		return other
	}
	return fresh
}

// wait is the time until a bucket that has left has units.
func (b *bucket) wait(left float64, units int) time.Duration {
	return time.Duration(float64(time.Second) * (float64(units) - left) / float64(b.Limit()))
}

// unitBytes is how many bytes of a body or an answer cost a unit.
const unitBytes = mib

// spend adds to what a request costs its caller. A unit is what an ordinary request costs, or
// two milliseconds of a verification. The caller pays after the request, also if it fails.
func (c *call) spend(units int) { c.spent += units }

// charge charges the caller for what its request has cost besides its method's cost.
func (s *Server) charge(cl *call) {
	units := cl.spent + len(cl.answer)/unitBytes
	if cl.caller == "" || units == 0 {
		return
	}
	bucket, left := s.byDID.charge(cl.caller.String(), units)
	bucket.describe(cl.http, left)
}

// seconds rounds up to whole seconds.
func seconds(s float64) int { return int(math.Ceil(s)) }

// setRetryAfter sets the header in whole seconds, at least one.
func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, seconds(after.Seconds()))))
}

// network returns the /64 of an IPv6 address, because one host usually has all of it. Any other
// address stays as it is.
func network(caller string) string {
	addr, err := netip.ParseAddr(caller)
	if err != nil || !addr.Is6() || addr.Is4In6() {
		return caller
	}
	return netip.PrefixFrom(addr.WithZone(""), 64).Masked().String()
}
