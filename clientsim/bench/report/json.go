package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// WriteJSON writes the report for a program, and for Read. Durations are in nanoseconds, latencies
// in microseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Read reads what WriteJSON wrote, with all histograms. An unknown field is an error, because the
// report is of another version.
func Read(r io.Reader) (*Report, error) {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	var report Report
	if err := decoder.Decode(&report); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return &report, nil
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

// UnmarshalJSON reads the histogram. It ignores the figures derived from it, except that the count
// must match.
func (l *Latency) UnmarshalJSON(text []byte) error {
	var read latencyJSON
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if read.HDR == "" {
		return errors.New("latency without its histogram (hdr)")
	}
	histogram, err := hdrhistogram.Decode([]byte(read.HDR))
	if err != nil {
		return fmt.Errorf("latency: %w", err)
	}
	if n := histogram.TotalCount(); n != read.Count {
		return fmt.Errorf("latency counts %d, its histogram %d", read.Count, n)
	}
	l.Histogram = histogram
	return nil
}
