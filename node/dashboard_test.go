package node

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// Every metric of the server, and every recorded series, is on the dashboard. The dashboard asks for
// no other metric of ours.
func TestDashboardIsComplete(t *testing.T) {
	t.Parallel()
	known := metricNames(t)
	for _, r := range rules(t) {
		if r.Record != "" {
			known = append(known, r.Record)
		}
	}
	name := regexp.MustCompile(`(nsid:)?\bmlsd_[a-z_]+(:[a-z0-9_]+)?`)
	part := regexp.MustCompile(`_(bucket|sum|count)$`) // of a histogram
	asked := map[string]bool{}
	dashboard, err := os.ReadFile("../deploy/ops/grafana/mlsd.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range name.FindAllString(string(dashboard), -1) {
		if !slices.Contains(known, n) {
			n = part.ReplaceAllString(n, "")
		}
		if asked[n] = true; !slices.Contains(known, n) {
			t.Errorf("there is no %s", n)
		}
	}
	for _, n := range known {
		if !asked[n] {
			t.Errorf("the dashboard lacks %s", n)
		}
	}
}
