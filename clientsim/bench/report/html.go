package report

import (
	_ "embed"
	"html/template"
	"io"
	"maps"
	"slices"
	"time"
)

//go:embed page.html
var pageText string

// styleText is the style of all pages and pictures.
//
//go:embed style.css
var styleText string

var page = parsePage(pageText)

// parsePage parses a page that uses the template "style".
func parsePage(text string) *template.Template {
	return template.Must(template.Must(template.New("page").Parse(text)).New("style").Parse(styleText)).Lookup("page")
}

// WriteHTML writes the report as one page without scripts and without links to other files.
func (r *Report) WriteHTML(w io.Writer) error {
	durable, is := r.Database.durable()
	view := struct {
		*Report
		When, MachineText, Durable, Load, VerdictText, VerdictCounts string
		IsDurable, Loads, PanelLoads                                 bool
		Failures                                                     []failures
		Settings                                                     []setting
		Rows                                                         []row
		Ratios                                                       []ratioText
		Plots                                                        []plot
	}{
		Report: r, When: r.Began.UTC().Format(time.DateTime + " MST"), MachineText: r.Machine.text(),
		Durable: durable, IsDurable: is, Load: r.loadText(), VerdictText: r.Verdict.text(),
		Rows: r.rows(), Plots: r.plots(),
	}
	if r.Verdict != nil {
		view.VerdictCounts = r.Verdict.counts()
	}
	for _, name := range slices.Sorted(maps.Keys(r.Database.Settings)) {
		view.Settings = append(view.Settings, setting{name, r.Database.Settings[name]})
	}
	head := ""
	for _, row := range view.Rows {
		view.Loads = view.Loads || row.Load != ""
		if row.Variant != "" {
			head = joined(row.Variant, row.Load)
		}
		if row.Failed != "" && row.Operation != "" {
			view.Failures = append(view.Failures, failures{joined(head, row.Operation), row.Failed})
		}
	}
	for _, ratio := range r.ratios() {
		view.PanelLoads = view.PanelLoads || ratio.load != ""
		view.Ratios = append(view.Ratios, ratioText{
			Pair: ratio.over + " ÷ " + ratio.under, Load: ratio.load, Turns: ratio.turns,
			Rate: significant(ratio.rate), Least: significant(ratio.least), Most: significant(ratio.most),
			P50: significant(ratio.p50), P99: significant(ratio.p99), Processor: significant(ratio.processors),
		})
	}
	return page.Execute(w, view)
}

type failures struct{ Of, Text string }

type setting struct{ Name, Value string }

type ratioText struct {
	Pair, Load, Rate, Least, Most, P50, P99, Processor string
	Turns                                              int
}
