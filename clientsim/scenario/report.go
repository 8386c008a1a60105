package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// Result is the result of one scenario.
type Result struct {
	Scenario   string              `json:"scenario"`
	Skipped    string              `json:"skipped,omitempty"` // why the scenario was skipped
	Duration   time.Duration       `json:"durationNs"`
	Sent       int64               `json:"sent"`
	Delivered  int64               `json:"delivered"`
	Retried    int64               `json:"retried"`
	Replays    int64               `json:"replays"`
	Lost       int                 `json:"lost"`
	Duplicated int                 `json:"duplicated"`
	Violated   int                 `json:"violated"`
	Violations []history.Violation `json:"violations,omitempty"`
	Notes      []string            `json:"notes,omitempty"` // measured figures
}

func (r *Result) count(s *xrpc.Stats, found []history.Violation) {
	r.Sent, r.Delivered = s.Sent.Load(), s.Delivered.Load()
	r.Retried, r.Replays = s.Retried.Load(), s.Replays.Load()
	r.Violations = found
	for _, v := range found {
		switch v.Kind {
		case history.Lost:
			r.Lost++
		case history.Duplicated:
			r.Duplicated++
		default:
			r.Violated++
		}
	}
}

// Report is a whole run.
type Report struct {
	Seed    uint64   `json:"seed"`
	Results []Result `json:"results"`
}

// Total sums all results.
func (r *Report) Total() Result {
	total := Result{Scenario: "total"}
	for _, s := range r.Results {
		total.Duration += s.Duration
		total.Sent += s.Sent
		total.Delivered += s.Delivered
		total.Retried += s.Retried
		total.Replays += s.Replays
		total.Lost += s.Lost
		total.Duplicated += s.Duplicated
		total.Violated += s.Violated
	}
	return total
}

// Played reports whether a scenario was played.
func (r *Report) Played() bool {
	return slices.ContainsFunc(r.Results, func(one Result) bool { return one.Skipped == "" })
}

// Kept reports whether every promise was kept.
func (r *Report) Kept() bool {
	t := r.Total()
	return t.Lost+t.Duplicated+t.Violated == 0
}

// WriteJSON writes the report for a program.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		*Report
		Total Result `json:"total"`
	}{r, r.Total()})
}

// WriteTable writes the report for a person: broken promises first, then one
// line per scenario, then the totals.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	for _, s := range r.Results {
		listViolations(&text, s)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "scenario\tduration\tsent\tdelivered\tretried\treplays\tlost\tduplicated\tviolated\t")
	for _, s := range r.Results {
		if s.Skipped != "" {
			fmt.Fprintf(table, "%s\tskipped\t\t\t\t\t\t\t\t\n", s.Scenario)
			continue
		}
		row(table, s)
	}
	total := r.Total()
	row(table, total)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range r.Results {
		for _, note := range s.Notes {
			fmt.Fprintf(&text, "%s: %s\n", s.Scenario, note)
		}
	}
	if !r.Kept() {
		fmt.Fprintf(&text, "run it again with --seed %d\n", r.Seed)
	}
	fmt.Fprintf(&text, "%d lost, %d duplicated, %d violated\n", total.Lost, total.Duplicated, total.Violated)
	_, err := io.WriteString(w, text.String())
	return err
}

// maxListed is how many violations are listed per scenario. Every member reports a fault of the
// server once per entry.
const maxListed = 20

func listViolations(w io.Writer, s Result) {
	if s.Skipped != "" {
		fmt.Fprintf(w, "%s: skipped: %s\n", s.Scenario, s.Skipped)
	}
	for i, v := range s.Violations {
		if i == maxListed {
			fmt.Fprintf(w, "%s: and %d more\n", s.Scenario, len(s.Violations)-i)
			break
		}
		fmt.Fprintf(w, "%s: %s\n", s.Scenario, v)
	}
}

func row(w io.Writer, s Result) {
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", s.Scenario, s.Duration.Round(time.Millisecond),
		s.Sent, s.Delivered, s.Retried, s.Replays, s.Lost, s.Duplicated, s.Violated)
}
