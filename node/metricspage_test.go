package node

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write the tables of docs/"+metricsPage+" and docs/SETTINGS.md")

// metricsPage is the page of metrics, in docs. Its table stands between two marks.
const (
	metricsPage = "operating/METRICS.md"
	tableBegins = "<!-- generated -->\n"
	tableEnds   = "<!-- end -->\n"
)

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
	wantTable(t, metricsPage, want.String())
}

// wantTable expects the table between the marks of a page. With -update it writes it.
func wantTable(t *testing.T, name, want string) {
	t.Helper()
	before, rest, begins := strings.Cut(readPage(t, name), tableBegins)
	got, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("docs/%s lacks the marks of its table", name)
	}
	if *update {
		got = want
		text := before + tableBegins + got + tableEnds + after
		if err := os.WriteFile(filepath.Join("../docs", name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/%s differs from what the program says (-want +got):\n%s\nto write it: "+
			"go test ./node -run %s -update", name, diff, t.Name())
	}
}
