package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Rate is a token bucket: PerSecond requests on average, Burst at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Rates are the limits of the public listener. All users of a PDS share its address, so a person is limited by DID, and an
// address only by requests whose caller could not be told.
type Rates struct {
	DID Rate
	IP  Rate
}

// maxBuckets bounds the callers that one limiter remembers. Whoever is forgotten starts with a full bucket.
const maxBuckets = 100_000

// limiter holds a token bucket per caller.
type limiter struct {
	rate    Rate
	limit   string                  // as the header has it
	share   func(who string) string // whose bucket it is
	buckets *lru.Cache[string, *rate.Limiter]
}

func newLimiter(r Rate, share func(string) string) (*limiter, error) {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		return nil, fmt.Errorf("a rate limit must be positive, not %g/s with a burst of %d", r.PerSecond, r.Burst)
	}
	buckets, err := lru.New[string, *rate.Limiter](maxBuckets)
	if err != nil {
		return nil, fmt.Errorf("make a rate limiter: %w", err)
	}
	return &limiter{rate: r, limit: strconv.Itoa(r.Burst), share: share, buckets: buckets}, nil
}

// take uses up one request of the caller, and says in the answer's headers what is left.
func (l *limiter) take(c echo.Context, caller string) error {
	bucket := l.bucket(caller)
	allowed := bucket.Allow()
	left := bucket.Tokens()
	l.describe(c, left)
	if allowed {
		return nil
	}
	return limited{after: l.wait(left)}
}

// check refuses a caller that has nothing left, and uses up nothing.
func (l *limiter) check(c echo.Context, caller string) error {
	left := l.bucket(caller).Tokens()
	if left >= 1 {
		return nil
	}
	l.describe(c, left)
	return limited{after: l.wait(left)}
}

func (l *limiter) describe(c echo.Context, left float64) {
	left = max(0, left)
	values := []string{l.limit, strconv.Itoa(int(left)), strconv.Itoa(seconds((float64(l.rate.Burst) - left) / l.rate.PerSecond))}
	h := c.Response().Header()
	for i, name := range limitHeaders {
		h[name] = values[i : i+1 : i+1]
	}
}

// limitHeaders are how much a caller may ask at once, how much of that is left, and in how many seconds all of it is again. In
// canonical form, which is what net/http would make of any other.
var limitHeaders = [...]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}

// charge counts one request against the caller, even if that is more than it had left.
func (l *limiter) charge(caller string) { l.bucket(caller).Reserve() }

func (l *limiter) bucket(caller string) *rate.Limiter {
	caller = l.share(caller)
	if bucket, ok := l.buckets.Get(caller); ok {
		return bucket
	}
	fresh := rate.NewLimiter(rate.Limit(l.rate.PerSecond), l.rate.Burst)
	if held, raced, _ := l.buckets.PeekOrAdd(caller, fresh); raced {
		return held
	}
	return fresh
}

// wait is how long it takes until a bucket with left requests has one.
func (l *limiter) wait(left float64) time.Duration {
	return time.Duration(float64(time.Second) * (1 - left) / l.rate.PerSecond)
}

// seconds rounds up to whole seconds, which is what these headers hold.
func seconds(s float64) int { return int(math.Ceil(s)) }

// setRetryAfter says when to try again: in whole seconds, at least one.
func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, seconds(after.Seconds()))))
}

// How fast streams are opened, so that a crowd that comes back at once leaves the processors to those who write: so many a second for
// each processor, so many at once, and nobody waits for longer than a client does.
const (
	openingsPerSecond = 400
	openingsAtOnce    = 16
	longestOpening    = 10 * time.Second
)

func newOpenings() *rate.Limiter {
	processors := runtime.GOMAXPROCS(0)
	return rate.NewLimiter(rate.Limit(openingsPerSecond*processors), openingsAtOnce*processors)
}

// turn waits for the caller's turn to open a stream. The error is busy if too many wait already, or ctx's.
func turn(ctx context.Context, openings *rate.Limiter) error {
	mine := openings.Reserve()
	wait := mine.Delay()
	switch {
	case wait == 0:
		return nil
	case wait > longestOpening:
		mine.Cancel()
		return busy{after: longestOpening}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		mine.Cancel()
		return ctx.Err()
	}
}

// network returns the /64 of an IPv6 address, all of which one host usually has, and any other caller as it is.
func network(caller string) string {
	addr, err := netip.ParseAddr(caller)
	if err != nil || !addr.Is6() || addr.Is4In6() {
		return caller
	}
	return netip.PrefixFrom(addr.WithZone(""), 64).Masked().String()
}
