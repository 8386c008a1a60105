package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// row is one group's result as text, for all of its operations or for one.
type row struct {
	Variant, Load, Operation         string
	Rate, Least, Most                string   // requests/s: median of the turns, and their extremes
	Latency                          []string // p50, p90, p99, p99.9, max
	Spread                           string   // p99 ÷ p50
	Server, Database, Self, Together string   // µs of processor per request; of all operations only
	Failed                           string   // by name
}

// rows returns a row for each group, and one for each of its operations if it has several.
func (r *Report) rows() (rows []row) {
	groups := r.groups()
	_, apart := loads(groups)
	for i, g := range groups {
		names := operations(g)
		head := g.row(all)
		head.Variant, head.Load = g.variant, apart[i]
		if len(names) == 1 {
			head.Operation = names[0]
		}
		rows = append(rows, head)
		if len(names) < 2 {
			continue
		}
		for _, name := range names {
			part := g.row(name)
			part.Operation = name
			rows = append(rows, part)
		}
	}
	return rows
}

// quantiles are the columns of latency. The greatest value follows.
var quantiles = []float64{50, 90, 99, 99.9}

func (g *group) row(name string) row {
	rates := g.rates(name)
	made := row{Rate: significant(median(rates)), Least: none, Most: none, Spread: none, Failed: g.failures(name)}
	if len(rates) > 0 {
		made.Least, made.Most = significant(slices.Min(rates)), significant(slices.Max(rates))
	}
	latency := g.latency(name)
	for _, q := range quantiles {
		made.Latency = append(made.Latency, latency.text(q))
	}
	made.Latency = append(made.Latency, latency.text(100))
	if p50 := latency.ValueAtQuantile(50); p50 > 0 {
		made.Spread = significant(float64(latency.ValueAtQuantile(99)) / float64(p50))
	}
	if name == all {
		c := costOf(g.runs...)
		made.Server, made.Database, made.Self = significant(c.server), significant(c.database), significant(c.load)
		made.Together = significant(c.total())
	}
	return made
}

func (l *Latency) text(quantile float64) string {
	if l.TotalCount() == 0 {
		return none
	}
	return latencyText(float64(l.ValueAtQuantile(quantile)))
}

// WriteTable writes the report for a person at a terminal, the verdict last.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	durable, _ := r.Database.durable()
	fmt.Fprintf(&text, "%s, %s, seed %d\n", r.Scenario, r.Began.UTC().Format(time.DateTime+" MST"), r.Seed)
	fmt.Fprintf(&text, "machine   %s\n", r.Machine.text())
	fmt.Fprintf(&text, "database  %s\n", joined(r.Database.Version, durable))
	fmt.Fprintf(&text, "load      %s\n\n", r.loadText())

	r.writeRows(&text)
	if ratios := r.ratios(); len(ratios) > 0 {
		text.WriteString("\n")
		writeRatios(&text, ratios)
	}
	text.WriteString("\n")
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "note: %s\n", note)
	}
	if r.Verdict != nil {
		for _, violated := range r.Verdict.Violated {
			fmt.Fprintf(&text, "violated: %s\n", violated)
		}
		fmt.Fprintln(&text, r.Verdict.counts())
	}
	fmt.Fprintln(&text, r.Verdict.text())
	if r.Command != "" {
		fmt.Fprintf(&text, "again: %s\n", r.Command)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (r *Report) writeRows(w io.Writer) {
	lines := [][]string{{"variant", "", "requests/s", "min–max", "p50", "p90", "p99", "p99.9", "max", "p99÷p50",
		"server µs", "database µs", "load µs", "failed"}}
	for _, row := range r.rows() {
		name := row.Variant
		if name == "" {
			name = "  " + row.Operation
		}
		line := append([]string{name, row.Load, row.Rate, row.Least + "–" + row.Most}, row.Latency...)
		lines = append(lines, append(line, row.Spread, row.Server, row.Database, row.Self, row.Failed))
	}
	align(w, lines, 0, 1, len(lines[0])-1)
	fmt.Fprintln(w, "(requests/s: median of the turns; latency: of all turns; µs: processor time per request done)")
}

func writeRatios(w io.Writer, ratios []ratio) {
	lines := [][]string{{"turn by turn", "", "rate", "min–max", "p50", "p99", "processor", "turns"}}
	for _, r := range ratios {
		lines = append(lines, []string{r.over + " ÷ " + r.under, r.load, significant(r.rate),
			significant(r.least) + "–" + significant(r.most), significant(r.p50), significant(r.p99), significant(r.processors),
			thousands(int64(r.turns))})
	}
	align(w, lines, 0, 1)
}

// align writes columns two spaces apart, the named ones flush left and the others flush right. The
// last cell of a line may be wider than its column.
func align(w io.Writer, lines [][]string, left ...int) {
	var widths []int
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(line)-1 || !slices.Contains(left, i) {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			if widths[i] == 0 && cell == "" {
				continue // a column that nobody uses
			}
			gap := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
			if slices.Contains(left, i) {
				cell += gap
			} else {
				cell = gap + cell
			}
			if text.Len() > 0 {
				cell = "  " + cell
			}
			text.WriteString(cell)
		}
		fmt.Fprintln(w, strings.TrimRight(text.String(), " "))
	}
}
