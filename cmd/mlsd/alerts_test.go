package main

import (
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"mlsd/api"
	"mlsd/internal/pgtest"
)

// ruleFile is the part of a Prometheus rules file that we use.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

// metricNames returns the names of all metrics of a node, with and without values.
func metricNames(t *testing.T) (names []string) {
	t.Helper()
	rate := api.Rate{PerSecond: 1, Burst: 1}
	cfg := Config{PLCURL: "http://127.0.0.1:1", Rates: api.Rates{DID: rate, IP: rate}}
	db := pgtest.Database(t)
	n, err := assemble(cfg, pools{db, db, db}, &net.TCPAddr{Port: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		n.reg.Describe(descs)
	}()
	named := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	for d := range descs {
		if found := named.FindStringSubmatch(d.String()); found != nil && strings.HasPrefix(found[1], "mlsd_") {
			names = append(names, found[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Every metric that an alert names exists. The page for operators has every metric and every alert,
// and no others.
func TestAlerts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../ops/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleFile
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	known := metricNames(t)
	if len(known) < 15 || len(file.Groups) != 1 || len(file.Groups[0].Rules) < 10 {
		t.Fatalf("metrics %v, groups %v", known, file.Groups)
	}
	metric, alert := regexp.MustCompile(`\bmlsd_[a-z_]+`), regexp.MustCompile(`\bMlsd[A-Za-z]+`)
	exists := func(name string) bool {
		return slices.Contains(known, name) || slices.Contains(known, strings.TrimSuffix(name, "_bucket"))
	}
	var alerts []string
	for _, r := range file.Groups[0].Rules {
		alerts = append(alerts, r.Alert)
		asked := metric.FindAllString(r.Expr, -1)
		if len(asked) == 0 || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s is incomplete: %+v", r.Alert, r)
		}
		for _, name := range asked {
			if !exists(name) {
				t.Errorf("%s asks for %s, which does not exist", r.Alert, name)
			}
		}
	}
	for _, name := range slices.Concat(known, alerts) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/OPERATING.md lacks %s", name)
		}
	}
	for _, name := range metric.FindAllString(string(page), -1) {
		if !exists(name) {
			t.Errorf("docs/OPERATING.md has %s, which does not exist", name)
		}
	}
	for _, name := range alert.FindAllString(string(page), -1) {
		if !slices.Contains(alerts, name) {
			t.Errorf("docs/OPERATING.md has %s, which is no alert", name)
		}
	}
}
