package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Result is the outcome of one attack on one server.
type Result struct {
	Attack  string `json:"attack"`
	Finding string `json:"finding"`
	Server  string `json:"server,omitempty"` // name of the server, if several are compared
	// Honest has the figures of honest users before, during and after the attack, by operation.
	Honest   map[string][phases]Figures `json:"honest"`
	Attempts int64                      `json:"attempts"` // attempts of the attacker
	Answers  map[string]int64           `json:"answers"`  // answers to the attacker, by status or "none"
	Effects  Effects                    `json:"effects"`
	Memory   int64                      `json:"memory"` // peak of the server, in bytes
	Claims   []Claim                    `json:"claims,omitempty"`
	Wrong    []string                   `json:"wrong"` // empty if the server withstood
}

// Withstood reports whether honest users were served and every claim was kept.
func (r *Result) Withstood() bool { return len(r.Wrong) == 0 }

// Report is the outcome of a run.
type Report struct {
	Command string    `json:"command"`
	Bounds  Bounds    `json:"bounds"`
	Results []*Result `json:"results"`
}

// Withstood reports whether the servers withstood all attacks.
func (r *Report) Withstood() bool {
	return !slices.ContainsFunc(r.Results, func(one *Result) bool { return !one.Withstood() })
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Write writes the result as text.
func (r *Result) Write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s (%s)%s\n", r.Attack, r.Finding, r.on())
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tcalm\tsuccess\tp50\tp99\tmax\tattack\tsuccess\t429\t503\tp50\tp99\tmax\tafter\tsuccess\t")
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		f := r.Honest[name]
		c, a, l := f[calm], f[attacked], f[after]
		fmt.Fprintf(table, "%s\t%d\t%s\t%.0f\t%.0f\t%.0f\t%d\t%s\t%s\t%s\t%.0f\t%.0f\t%.0f\t%d\t%s\t\n", name,
			c.Count, percent(c.Success), c.P50, c.P99, c.Max,
			a.Count, percent(a.Success), percent(a.Limited), percent(a.Busy), a.P50, a.P99, a.Max, l.Count, percent(l.Success))
	}
	err := table.Flush()
	fmt.Fprintf(&b, "attacker: %d attempts; answers: %s\n", r.Attempts, r.answers())
	fmt.Fprintf(&b, "server: peak memory %s; database grew by %s; %d lines of log\n", mebibytes(r.Memory),
		mebibytes(r.Effects.Stored), r.Effects.LogLines)
	for _, c := range r.Claims {
		fmt.Fprintf(&b, "%s: %s, at most %s\n", c.What, number(c.Value), number(c.Limit))
	}
	for _, w := range r.Wrong {
		fmt.Fprintf(&b, "FAILED %s\n", w)
	}
	if r.Withstood() {
		b.WriteString("withstood\n")
	}
	_, writeErr := io.WriteString(out, b.String())
	return errors.Join(err, writeErr)
}

func (r *Result) on() string {
	if r.Server == "" {
		return ""
	}
	return " on " + r.Server
}

func (r *Result) answers() string {
	var words []string
	for _, status := range slices.Sorted(maps.Keys(r.Answers)) {
		words = append(words, fmt.Sprintf("%d × %s", r.Answers[status], status))
	}
	return strings.Join(words, ", ")
}

// WriteSummary writes one line for each result.
func (r *Report) WriteSummary(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nfinding\tattack\tserver\tworst success\tworst p99 (calm)\tmemory\tstored\t")
	for _, one := range r.Results {
		success, p99 := one.worst()
		verdict := "withstood"
		if !one.Withstood() {
			verdict = fmt.Sprintf("%d FAILED", len(one.Wrong))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Finding, one.Attack, one.Server, success, p99,
			mebibytes(one.Memory), mebibytes(one.Effects.Stored), verdict)
	}
	return table.Flush()
}

// worst returns the operation with the fewest successes during the attack, and the operation whose
// p99 has grown most.
func (r *Result) worst() (success, p99 string) {
	least, most := 2.0, -1.0
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		f := r.Honest[name]
		if s := f[attacked].Success; s < least {
			least, success = s, name+" "+percent(s)
		}
		if grew := f[attacked].P99 - f[calm].P99; grew > most {
			most, p99 = grew, fmt.Sprintf("%s %.0f ms (%.0f)", name, f[attacked].P99, f[calm].P99)
		}
	}
	return success, p99
}

// percent formats a share. It never rounds up to 100%.
func percent(share float64) string {
	if share == 1 || share == 0 {
		return strconv.Itoa(int(share)*100) + "%"
	}
	return fmt.Sprintf("%.2f%%", min(share*100, 99.99))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
