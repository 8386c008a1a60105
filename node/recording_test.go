package node

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"mlsd/api"
)

// Finding S3: the recording rules name metrics and outcomes that exist, and the page for operators
// has every rule.
func TestRecordingRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/ops/recording.yml")
	if err != nil {
		t.Fatal(err)
	}
	page := readPage(t, metricsPage)
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	known := metricNames(t)
	exists := func(name string) bool {
		return slices.ContainsFunc([]string{"", "_bucket", "_sum", "_count"}, func(end string) bool {
			return slices.Contains(known, strings.TrimSuffix(name, end))
		})
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) != 9 {
		t.Fatalf("groups %+v", file.Groups)
	}
	counted := api.KeyOutcomes()
	for _, r := range file.Groups[0].Rules {
		asked := regexp.MustCompile(`\bmlsd_[a-z_]+`).FindAllString(r.Expr, -1)
		if r.Record == "" || len(asked) == 0 {
			t.Errorf("%q is incomplete: %s", r.Record, r.Expr)
		}
		for _, name := range asked {
			if !exists(name) {
				t.Errorf("%s asks for %s, which does not exist", r.Record, name)
			}
		}
		for _, m := range regexp.MustCompile(`outcome=~?"([a-z_|]+)"`).FindAllStringSubmatch(r.Expr, -1) {
			for outcome := range strings.SplitSeq(m[1], "|") {
				if !slices.Contains(counted, outcome) {
					t.Errorf("%s asks for the outcome %s, which is not counted", r.Record, outcome)
				}
			}
		}
		if !strings.Contains(page, "`"+r.Record+"`") {
			t.Errorf("docs/operating/METRICS.md lacks %s", r.Record)
		}
	}
}
