package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Live is a stand-in.
type Live struct{ w io.Writer }

// NewLive is a stand-in.
func NewLive(w io.Writer) *Live { return &Live{w} }

// Second is a stand-in.
func (l *Live) Second(run string, s Second) {
	l.Line(fmt.Sprintf("%-12s %5.1fs %7d/s p50 %s p99 %s", run, s.At.Seconds(), s.Done, s.P50, s.P99))
}

// Line is a stand-in.
func (l *Live) Line(text string) { _, _ = fmt.Fprintln(l.w, text) }

// Close is a stand-in.
func (l *Live) Close() {}

// WriteJSON is a stand-in.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteHTML is a stand-in.
func (r *Report) WriteHTML(w io.Writer) error { return r.WriteTable(w) }

// WriteTable is a stand-in.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s seed %d\n%+v\n%+v\n", r.Scenario, r.Seed, r.Machine, r.Database)
	rates := map[string][]float64{}
	for _, run := range r.Runs {
		for name, op := range run.Operations {
			rate := float64(op.Done) / run.Took.Seconds()
			rates[run.Variant+" "+name] = append(rates[run.Variant+" "+name], rate)
			per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(op.Done, 1)) }
			fmt.Fprintf(w, "%-14s %d %-16s %9.0f/s p50 %7d p99 %7d max %7d µs; µs/req server %5.1f db %5.1f load %5.1f; failed %v backlog %d\n", run.Variant, run.Turn,
				name, rate, op.Latency.ValueAtQuantile(50), op.Latency.ValueAtQuantile(99), op.Latency.Max(), per(run.Spent.Server), per(run.Spent.Database),
				per(run.Spent.Load), op.Failed, run.Backlog)
		}
	}
	for name, all := range rates {
		slices.Sort(all)
		fmt.Fprintf(w, "median %-30s %.0f/s\n", name, all[len(all)/2])
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	_, err := fmt.Fprintf(w, "%+v\n", r.Verdict)
	return err
}
