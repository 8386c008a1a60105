package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	made := plausible(2, 3, threeWays...)
	made.Runs[0].Operations["getMessages"] = &Operation{Done: 1} // without a latency
	var first, second bytes.Buffer
	if err := made.WriteJSON(&first); err != nil {
		t.Fatal(err)
	}
	text := first.String()
	read, err := Read(&first)
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b *Latency) bool {
		return a == b || a != nil && b != nil && a.Equals(b.Histogram)
	})
	if diff := cmp.Diff(made, read, same); diff != "" {
		t.Error(diff)
	}
	if err := read.WriteJSON(&second); err != nil {
		t.Fatal(err)
	}
	if second.String() != text {
		t.Error("written again it is another text")
	}
}

func TestLatencyJSON(t *testing.T) {
	t.Parallel()
	latency := NewLatency()
	_ = latency.RecordValues(100, 98)
	_ = latency.RecordValues(500, 2)
	text, err := json.Marshal(latency)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "hdr")
	want := map[string]any{"count": 100., "min": 100., "mean": 108., "p50": 100., "p90": 100., "p99": 500., "p999": 500., "max": 500.}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{`{"scenarios": []}`, "unknown field"},
		{`{"runs": [{"operations": {"a": {"latency": {"count": 3}}}}]}`, "without its histogram"},
		{`{"runs": [{"operations": {"a": {"latency": {"count": 3, "hdr": "AAAA"}}}}]}`, "latency"},
		{`{"runs": `, "unexpected EOF"},
	} {
		if _, err := Read(strings.NewReader(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.text, err, test.want)
		}
	}
	latency := NewLatency()
	_ = latency.RecordValue(5)
	text, err := json.Marshal(latency)
	if err != nil {
		t.Fatal(err)
	}
	if err := new(Latency).UnmarshalJSON(bytes.Replace(text, []byte(`"count":1`), []byte(`"count":2`), 1)); err == nil {
		t.Error("a count that is not the histogram's was accepted")
	}
}
