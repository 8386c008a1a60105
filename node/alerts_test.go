package node

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"mlsd/api"
	"mlsd/internal/moduletest"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby"
)

// ruleFile is the part of a Prometheus rules file that we use.
type ruleFile struct {
	Groups []struct{ Rules []rule }
}

// rule is an alert, or a recorded series.
type rule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

// newNode returns a node that does not run yet.
func newNode(t *testing.T) *Node {
	t.Helper()
	rate := api.Rate{PerSecond: 1, Burst: 1}
	cfg := Config{PLCURL: "http://127.0.0.1:1", Rates: api.Rates{DID: rate, IP: rate}}
	db := pgtest.Database(t)
	n := &Node{db: pools{db, db, db, standby.New(standby.Config{DB: db})}, log: slog.New(slog.DiscardHandler)}
	if err := n.assemble(cfg, &net.TCPAddr{Port: 1}); err != nil {
		t.Fatal(err)
	}
	return n
}

// S11: every metric that a rule names exists. The runbook has every alert, and no others: its
// severity, and a heading that says what it means and what to do. The pages for operators name no
// metric that does not exist.
func TestAlerts(t *testing.T) {
	t.Parallel()
	page := readPage(t, runbook)
	known := metricNames(t)
	if len(known) < 15 {
		t.Fatalf("metrics %v", known)
	}
	metric, alert := regexp.MustCompile(`\bmlsd_[a-z_]+`), regexp.MustCompile(`\bMlsd[A-Za-z]+`)
	part := regexp.MustCompile(`_(bucket|sum|count)$`) // of a histogram
	exists := func(name string) bool {
		return slices.Contains(known, name) || slices.Contains(known, part.ReplaceAllString(name, ""))
	}
	var alerts []string
	var table strings.Builder
	table.WriteString("| alert | severity |\n|---|---|\n")
	for _, r := range rules(t) {
		asked := metric.FindAllString(r.Expr, -1)
		if len(asked) == 0 {
			t.Errorf("%s%s asks for no metric", r.Alert, r.Record)
		}
		for _, name := range asked {
			if !exists(name) {
				t.Errorf("%s%s asks for %s, which does not exist", r.Alert, r.Record, name)
			}
		}
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s is incomplete: %+v", r.Alert, r)
		}
		heading := strings.ToLower(r.Alert)
		if got, want := r.Annotations["runbook_url"], "docs/operating/RUNBOOK.md#"+heading; got != want ||
			!strings.Contains(page, "\n## "+r.Alert+"\n") {
			t.Errorf("%s: runbook_url is %q, want %q, and that heading must exist", r.Alert, got, want)
		}
		_, section, _ := strings.Cut(page, "\n## "+r.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		if !strings.Contains(section, "\n- **Do:** ") || strings.HasPrefix(section, "\n- ") {
			t.Errorf("the runbook does not say what %s means, and what to do", r.Alert)
		}
		fmt.Fprintf(&table, "| [`%s`](#%s) | %s |\n", r.Alert, heading, r.Labels["severity"])
	}
	if len(alerts) < 20 {
		t.Fatalf("alerts %v", alerts)
	}
	moduletest.Table(t, "docs/"+runbook, "", table.String())
	for _, name := range metric.FindAllString(page+readPage(t, "OPERATING.md"), -1) {
		if !exists(name) {
			t.Errorf("a page for operators has %s, which does not exist", name)
		}
	}
	for _, name := range alert.FindAllString(page, -1) {
		if !slices.Contains(alerts, name) {
			t.Errorf("the runbook has %s, which is no alert", name)
		}
	}
}

// runbook is the page of alerts, in docs.
const runbook = "operating/RUNBOOK.md"

// readPage returns a page of docs.
func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rules returns the rules of all files in ops.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	paths, err := filepath.Glob("../deploy/ops/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.yml") { // sample series
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file ruleFile
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// S11: increase() does not see the count with which a series begins. So the series of an alert that
// any one count sets off exist from the start. Otherwise the first refused transition would be no
// alert.
func TestSeriesOfAlertsExist(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	families, err := prometheus.Gatherers{n.reg, n.stored}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var series []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all := f.GetName()
			for _, l := range m.GetLabel() {
				series = append(series, f.GetName()+" "+l.GetName()+"="+l.GetValue())
				all += " " + l.GetName() + "=" + l.GetValue()
			}
			series = append(series, all)
		}
	}
	want := []string{"mlsd_push_jobs_total outcome=dead", "mlsd_push_jobs_total outcome=done"}
	for _, o := range api.Lifetimes() { // finding G2: every operation that has a lease
		if o.Lease != 0 && o.NSID != "" {
			want = append(want, "mlsd_idempotency_total nsid="+o.NSID+" outcome=takeover",
				"mlsd_idempotency_total nsid="+o.NSID+" outcome=heartbeat_lost")
		}
	}
	rows, err := n.db.requests.Query(t.Context(),
		`SELECT DISTINCT 'mlsd_invalid_transitions_total entity=' || entity FROM transitions`)
	if err != nil {
		t.Fatal(err)
	}
	entities, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(entities) < 3 {
		t.Fatalf("entities %v, %v", entities, err)
	}
	for _, name := range append(want, entities...) {
		if !slices.Contains(series, name) {
			t.Errorf("a new node has no series %s", name)
		}
	}
}
