package load

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLatencyJSON(t *testing.T) {
	t.Parallel()
	latency := NewLatency()
	for range 98 {
		latency.Record(100 * time.Microsecond)
	}
	for range 2 {
		latency.Record(500 * time.Microsecond)
	}
	text, err := json.Marshal(latency)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"count": 100., "min": 100., "mean": 108., "p50": 100., "p90": 100., "p99": 500., "p999": 500.,
		"max": 500.}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A latency beyond the histogram counts as the greatest latency of the histogram.
func TestLatencyBeyond(t *testing.T) {
	t.Parallel()
	latency := NewLatency()
	latency.Record(0)
	latency.Record(time.Hour)
	if n := latency.TotalCount(); n != 2 {
		t.Errorf("%d latencies, want 2", n)
	}
}
