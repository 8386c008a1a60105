package node

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/internal/moduletest"

	"github.com/prometheus/client_golang/prometheus"
)

// metricsPage is the page of metrics, in docs.
const metricsPage = "operating/METRICS.md"

// description is what a node says of a metric.
type description struct{ name, help, labels string }

// described finds its parts in the text of a [prometheus.Desc].
var described = regexp.MustCompile(
	`fqName: "(mlsd_[a-z_]+)", help: "(.*)", unit: ".*", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// descriptions returns what a node says of its metrics, with and without values: first its own, then
// those of the database, each by name.
func descriptions(t *testing.T) (all []description) {
	t.Helper()
	n := newNode(t)
	for _, from := range []prometheus.Collector{n.reg, n.stored} {
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			from.Describe(descs)
		}()
		var some []description
		for d := range descs {
			if found := described.FindStringSubmatch(d.String()); found != nil {
				some = append(some, description{found[1], strings.ReplaceAll(found[2], `\"`, `"`), found[3]})
			}
		}
		slices.SortFunc(some, func(a, b description) int { return strings.Compare(a.name, b.name) })
		for _, d := range some {
			if !slices.ContainsFunc(all, func(old description) bool { return old.name == d.name }) {
				all = append(all, d)
			}
		}
	}
	return all
}

// metricNames returns the names of all metrics of a node.
func metricNames(t *testing.T) (names []string) {
	t.Helper()
	for _, d := range descriptions(t) {
		names = append(names, d.name)
	}
	return names
}

// The page of metrics has every metric, its labels, and the program's own text about it.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	want.WriteString("| metric | labels | |\n|---|---|---|\n")
	for _, d := range descriptions(t) {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", d.name, strings.ReplaceAll(d.labels, ",", ", "), d.help)
	}
	moduletest.Table(t, "docs/"+metricsPage, "", want.String())
}
