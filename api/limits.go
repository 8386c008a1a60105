package api

import (
	"fmt"
	"math"
	"net/http"
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
// address only by what it may try before it is authenticated.
type Rates struct {
	DID Rate
	IP  Rate
}

// maxBuckets bounds the callers that one limiter remembers. Whoever is forgotten starts with a full bucket.
const maxBuckets = 100_000

// limiter holds a token bucket per caller.
type limiter struct {
	rate    Rate
	buckets *lru.Cache[string, *rate.Limiter]
}

func newLimiter(r Rate) (*limiter, error) {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		return nil, fmt.Errorf("a rate limit must be positive, not %g/s with a burst of %d", r.PerSecond, r.Burst)
	}
	buckets, err := lru.New[string, *rate.Limiter](maxBuckets)
	if err != nil {
		return nil, fmt.Errorf("make a rate limiter: %w", err)
	}
	return &limiter{rate: r, buckets: buckets}, nil
}

// take uses up one request of the caller, and says in the answer's headers what is left.
func (l *limiter) take(c echo.Context, caller string) error {
	bucket, ok := l.buckets.Get(caller)
	if !ok {
		fresh := rate.NewLimiter(rate.Limit(l.rate.PerSecond), l.rate.Burst)
		if held, raced, _ := l.buckets.PeekOrAdd(caller, fresh); raced {
			bucket = held
		} else {
			bucket = fresh
		}
	}
	allowed := bucket.Allow()
	left := max(0, bucket.Tokens())
	h := c.Response().Header()
	h.Set("RateLimit-Limit", strconv.Itoa(l.rate.Burst))
	h.Set("RateLimit-Remaining", strconv.Itoa(int(left)))
	h.Set("RateLimit-Reset", strconv.Itoa(seconds((float64(l.rate.Burst)-left)/l.rate.PerSecond)))
	if allowed {
		return nil
	}
	wait := time.Duration(float64(time.Second) * (1 - left) / l.rate.PerSecond)
	return limited{after: wait}
}

// seconds rounds up to whole seconds, which is what these headers hold.
func seconds(s float64) int { return int(math.Ceil(s)) }

// setRetryAfter says when to try again: in whole seconds, at least one.
func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, seconds(after.Seconds()))))
}
