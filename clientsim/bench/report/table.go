package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mlsd/clientsim/load"
)

// quantiles are the columns of latency.
var quantiles = []float64{50, 90, 99, 99.9, 100}

// quantile writes a quantile of latencies.
func quantile(l *load.Latency, q float64) string {
	if l.TotalCount() == 0 {
		return none
	}
	return latencyText(float64(l.ValueAtQuantile(q)))
}

// WriteTable writes the report for a person at a terminal, the verdict last.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, seed %d\n", r.Scenario, r.Began.UTC().Format(time.DateTime+" MST"), r.Seed)
	fmt.Fprintf(&text, "machine   %s\n", r.Machine.text())
	fmt.Fprintf(&text, "database  %s\n", joined(r.Database.Version, r.Database.durable()))
	fmt.Fprintf(&text, "load      %s\n\n", r.loadText())

	if err := r.writeRows(&text); err != nil {
		return err
	}
	if err := writeRatios(&text, r.ratios()); err != nil {
		return err
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

// columns begins a table whose columns are flush right, but for the text after the last tab.
func columns(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// writeRows writes a row for each variant, and one for each of its operations if it has several.
func (r *Report) writeRows(w io.Writer) error {
	table := columns(w)
	fmt.Fprint(table, "\trequests/s\tmin–max\tp50\tp90\tp99\tp99.9\tmax\tp99÷p50\tserver µs\tdatabase µs\tload µs\t\n")
	for _, g := range r.groups() {
		c := costOf(g.runs...)
		load := ""
		if l := g.runs[0].Load; l != r.Runs[0].Load {
			load = l.text()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t  %s\n", g.variant, g.row(all),
			significant(c.server), significant(c.database), significant(c.load), joined(g.failures(all), load))
		names := operations(g)
		if len(names) < 2 {
			continue
		}
		for _, name := range names {
			fmt.Fprintf(table, "%s\t%s\t\t\t\t  %s\n", name, g.row(name), g.failures(name))
		}
	}
	fmt.Fprintln(table, "(requests/s: median of the turns; latency: of all turns; µs: processor time per request done)")
	return table.Flush()
}

// row has the columns of rate and latency, of one operation or of all.
func (g *group) row(name string) string {
	rates := g.rates(name)
	span := none
	if len(rates) > 0 {
		span = significant(slices.Min(rates)) + "–" + significant(slices.Max(rates))
	}
	cells := []string{significant(median(rates)), span}
	latency := g.latency(name)
	for _, q := range quantiles {
		cells = append(cells, quantile(latency, q))
	}
	spread := none
	if p50 := latency.ValueAtQuantile(50); p50 > 0 {
		spread = significant(float64(latency.ValueAtQuantile(99)) / float64(p50))
	}
	return strings.Join(append(cells, spread), "\t")
}

func writeRatios(w io.Writer, ratios []ratio) error {
	if len(ratios) == 0 {
		return nil
	}
	table := columns(w)
	fmt.Fprint(table, "\nturn by turn\trate\tmin–max\tp50\tp99\tprocessor\tturns\t\n")
	for _, r := range ratios {
		fmt.Fprintf(table, "%s ÷ %s\t%s\t%s–%s\t%s\t%s\t%s\t%d\t\n", r.over, r.under, significant(r.rate),
			significant(r.least), significant(r.most), significant(r.p50), significant(r.p99), significant(r.processors),
			r.turns)
	}
	return table.Flush()
}
