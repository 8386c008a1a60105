package load

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a histogram in microseconds. It keeps three significant digits from 1 µs to 10 minutes.
type Latency struct {
	*hdrhistogram.Histogram
}

// longest is the longest latency that differs from longer ones.
const longest = 10 * time.Minute

// NewLatency returns an empty histogram.
func NewLatency() *Latency { return &Latency{hdrhistogram.New(1, longest.Microseconds(), 3)} }

// Record counts a latency. What is outside of the histogram counts as its least or greatest value.
func (l *Latency) Record(d time.Duration) {
	_ = l.RecordValue(min(max(d.Microseconds(), 1), longest.Microseconds())) // it is within the bounds
}

// String is the usual percentiles.
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
