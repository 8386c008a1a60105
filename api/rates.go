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
	limit    string                     // as the header has it
	bucketOf func(caller string) string // callers with the same result share a bucket
	buckets  *lru.Cache[string, *rate.Limiter]
}

func newLimiter(r Rate, bucketOf func(string) string) (*limiter, error) {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		return nil, fmt.Errorf("a rate limit must be positive, not %g/s with a burst of %d", r.PerSecond, r.Burst)
	}
	buckets, err := lru.New[string, *rate.Limiter](maxBuckets)
	if err != nil {
		return nil, fmt.Errorf("make a rate limiter: %w", err)
	}
	return &limiter{rate: r, limit: strconv.Itoa(r.Burst), bucketOf: bucketOf, buckets: buckets}, nil
}

// take takes one request from the caller's bucket. The answer's headers say what is left.
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

// check refuses a caller whose bucket is empty. It takes nothing.
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

// limitHeaders are the size of the bucket, the requests that are left in it, and the seconds until
// it is full. They have net/http's canonical form, so they can be set without conversion.
var limitHeaders = [...]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}

// charge takes one request from the caller's bucket, even if the bucket is empty.
func (l *limiter) charge(caller string) { l.bucket(caller).Reserve() }

func (l *limiter) bucket(caller string) *rate.Limiter {
	caller = l.bucketOf(caller)
	if bucket, ok := l.buckets.Get(caller); ok {
		return bucket
	}
	fresh := rate.NewLimiter(rate.Limit(l.rate.PerSecond), l.rate.Burst)
	if other, raced, _ := l.buckets.PeekOrAdd(caller, fresh); raced {
		return other
	}
	return fresh
}

// wait is the time until a bucket that has left of a request has a whole one.
func (l *limiter) wait(left float64) time.Duration {
	return time.Duration(float64(time.Second) * (1 - left) / l.rate.PerSecond)
}

// seconds rounds up to whole seconds.
func seconds(s float64) int { return int(math.Ceil(s)) }

// setRetryAfter sets the header in whole seconds, at least one.
func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, seconds(after.Seconds()))))
}

// The rate at which streams are opened. When all clients reconnect at once, it leaves the
// processors to those who write.
const (
	openingsPerSecond = 400              // for each processor
	openingsAtOnce    = 16               // for each processor
	longestOpening    = 10 * time.Second // a client does not wait longer
)

func newOpenings() *rate.Limiter {
	processors := runtime.GOMAXPROCS(0)
	return rate.NewLimiter(rate.Limit(openingsPerSecond*processors), openingsAtOnce*processors)
}

// waitToOpen waits until another stream may be opened. The error is busy if too many wait already,
// or ctx's.
func waitToOpen(ctx context.Context, openings *rate.Limiter) error {
	opening := openings.Reserve()
	wait := opening.Delay()
	switch {
	case wait == 0:
		return nil
	case wait > longestOpening:
		opening.Cancel()
		return busy{after: longestOpening}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		opening.Cancel()
		return ctx.Err()
	}
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
