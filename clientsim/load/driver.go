// Package load drives requests, at a rate or as many as possible, and counts and times them.
package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Driver makes requests until a context ends.
type Driver struct {
	// Rate is how many requests begin per second, answered or not. 0 means as many as possible.
	Rate float64
	// Lanes is the largest number of unanswered requests.
	Lanes int
	// Full gets each request for which no lane is free; the request is not made. If Full is nil, the
	// request waits for a lane, and its latency counts from when the request was due.
	Full func(r Request)
	// Exact makes requests begin within 50 µs of when they are due. Go's timers may be a millisecond
	// late on an idle machine, and some requests take less than a millisecond.
	Exact bool
	// Count returns the counter for a request that is due at a time. The field may be nil.
	Count func(due time.Time) *Counter
}

// Request is one request of a Driver.
type Request struct {
	I    int // from 0
	Lane int // from 0; a lane has one request at a time
	Due  time.Time
	// Count counts the result of the request. nil means that the request does not count.
	Count *Counter
}

// request makes a request that is due at a time.
func (d *Driver) request(i, lane int, due time.Time) Request {
	r := Request{I: i, Lane: lane, Due: due}
	if d.Count != nil {
		r.Count = d.Count(due)
	}
	return r
}

// Run calls do for each request until ctx ends, and returns when the last call has returned.
func (d *Driver) Run(ctx context.Context, do func(Request)) {
	if d.Rate > 0 {
		d.atRate(ctx, do)
		return
	}
	var next atomic.Int64
	var running sync.WaitGroup
	for lane := range d.Lanes {
		running.Go(func() {
			for ctx.Err() == nil {
				do(d.request(int(next.Add(1)-1), lane, time.Now()))
			}
		})
	}
	running.Wait()
}

// Try is Run for requests that can fail: the first failure ends it. Each lane has its own random
// numbers, made from the seed.
func (d *Driver) Try(ctx context.Context, seed uint64, do func(Request, *rand.Rand) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs, numbers := make([]error, d.Lanes), make([]*rand.Rand, d.Lanes)
	for lane := range numbers {
		numbers[lane] = rand.New(rand.NewPCG(seed, uint64(lane)))
	}
	d.Run(ctx, func(r Request) {
		if err := do(r, numbers[r.Lane]); err != nil {
			errs[r.Lane] = errors.Join(errs[r.Lane], err)
			stop()
		}
	})
	return errors.Join(errs...)
}

// atRate begins requests at the rate. It makes every request that is due before ctx ends.
func (d *Driver) atRate(ctx context.Context, do func(Request)) {
	sleep := time.Sleep
	if d.Exact {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		sleep = kernelSleep
	}
	free := make(chan int, d.Lanes)
	for lane := range d.Lanes {
		free <- lane
	}
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	ending := make(chan time.Time, 1)
	defer context.AfterFunc(ctx, func() { ending <- time.Now() })()
	var ended time.Time // zero while ctx lasts
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / d.Rate * float64(time.Second)))
		for wait := time.Until(due); wait > 0 && ctx.Err() == nil; wait = time.Until(due) {
			sleep(min(wait, 10*time.Millisecond))
		}
		if ctx.Err() != nil && ended.IsZero() {
			ended = <-ending
		}
		if !ended.IsZero() && !due.Before(ended) {
			return
		}
		r := d.request(i, 0, due)
		select {
		case r.Lane = <-free:
		default:
			if d.Full != nil {
				d.Full(r)
				continue
			}
			r.Lane = <-free
		}
		running.Go(func() {
			defer func() { free <- r.Lane }()
			do(r)
		})
	}
}

// Leave is a Full that does nothing.
func Leave(Request) {}

// Latency is a histogram in microseconds. It keeps three significant digits from 1 µs to 10
// minutes.
type Latency struct {
	*hdrhistogram.Histogram
}

// longest is the longest latency that differs from longer ones.
const longest = 10 * time.Minute

// NewLatency returns an empty histogram.
func NewLatency() *Latency { return &Latency{hdrhistogram.New(1, longest.Microseconds(), 3)} }

// Record counts a latency. A latency outside of the histogram counts as its least or greatest
// value.
func (l *Latency) Record(d time.Duration) {
	_ = l.RecordValue(min(max(d.Microseconds(), 1), longest.Microseconds())) // cannot fail: the value is within the bounds
}

// String returns the usual percentiles.
func (l *Latency) String() string {
	at := func(q float64) time.Duration {
		return (time.Duration(l.ValueAtQuantile(q)) * time.Microsecond).Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s of %d", at(50), at(90), at(99), at(99.9), at(100),
		l.TotalCount())
}

// MarshalJSON writes the usual percentiles, in microseconds.
func (l *Latency) MarshalJSON() ([]byte, error) {
	if l == nil || l.Histogram == nil {
		return []byte("null"), nil
	}
	return json.Marshal(map[string]any{
		"count": l.TotalCount(), "min": l.Min(), "mean": l.Mean(), "p50": l.ValueAtQuantile(50),
		"p90": l.ValueAtQuantile(90), "p99": l.ValueAtQuantile(99), "p999": l.ValueAtQuantile(99.9), "max": l.Max(),
	})
}
