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

// latencyJSON is a Latency in JSON, in microseconds. HDR is the whole histogram. The other fields
// are for readers without an HdrHistogram.
type latencyJSON struct {
	Count int64   `json:"count"`
	Min   int64   `json:"min"`
	Mean  float64 `json:"mean"`
	P50   int64   `json:"p50"`
	P90   int64   `json:"p90"`
	P99   int64   `json:"p99"`
	P999  int64   `json:"p999"`
	Max   int64   `json:"max"`
	HDR   string  `json:"hdr"` // HdrHistogram V2, compressed, base64
}

// MarshalJSON writes the usual percentiles and the histogram itself.
func (l *Latency) MarshalJSON() ([]byte, error) {
	if l == nil || l.Histogram == nil {
		return []byte("null"), nil
	}
	hdr, err := l.EncodeV2()
	if err != nil {
		return nil, err
	}
	return json.Marshal(latencyJSON{
		Count: l.TotalCount(), Min: l.Min(), Mean: l.Mean(),
		P50: l.ValueAtQuantile(50), P90: l.ValueAtQuantile(90), P99: l.ValueAtQuantile(99), P999: l.ValueAtQuantile(99.9),
		Max: l.Max(), HDR: string(hdr),
	})
}
