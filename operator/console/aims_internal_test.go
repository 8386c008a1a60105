package console

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// The page Now says which share of fetches, joins and keys failed in the last hour, and whether that
// is more than 0.1 %. (R)
func TestAims(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	counters := func(name string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, labels)
		reg.MustRegister(c)
		return c
	}
	fetches, joins := counters(welcomeFetches, "outcome"), counters(welcomeConfirms, "outcome")
	uses, all := counters(keyUses, "nsid", "outcome"), counters(requests, "nsid")
	h := newHistory(reg)
	at := noon
	add := func() {
		t.Helper()
		if err := h.add(at); err != nil {
			t.Fatal(err)
		}
		at = at.Add(step)
	}
	figures := func() (texts []string) {
		for _, r := range h.reached() {
			texts = append(texts, fmt.Sprintf("%d of %d, missed: %t", r.Failed, r.All, r.Missed()))
		}
		return texts
	}
	want := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, figures()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	want("0 of 0, missed: false", "0 of 0, missed: false", "0 of 0, missed: false")
	fetches.WithLabelValues("WelcomeNotFound").Add(50) // before the console began
	add()
	for outcome, n := range map[string]float64{"ok": 997, "InternalServerError": 1, "ServiceUnavailable": 1,
		"WelcomeNotFound": 1, "WelcomeConsumed": 500, "ConvoNotFound": 500} {
		fetches.WithLabelValues(outcome).Add(n)
	}
	joins.WithLabelValues("success").Add(999)
	joins.WithLabelValues("failure").Add(1)
	joins.WithLabelValues("unchanged").Add(500)
	uses.WithLabelValues("x", "conflict").Add(1)
	all.WithLabelValues("x").Add(999)
	add()
	want("3 of 1000, missed: true", "1 of 1000, missed: false", "1 of 999, missed: true")
	for range time.Hour / step {
		add()
	}
	want("0 of 0, missed: false", "0 of 0, missed: false", "0 of 0, missed: false")
	if len(h.totals) != kept+1 {
		t.Errorf("%d totals are kept", len(h.totals))
	}
}

// The aims are those of the alerts.
func TestAimsAreThoseOfTheAlerts(t *testing.T) {
	t.Parallel()
	alerts, err := os.ReadFile("../../deploy/ops/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, expr := range []string{
		`mlsd_welcome_fetches_total{outcome=~"InternalServerError|ServiceUnavailable|WelcomeNotFound"}[1h]`,
		`mlsd_welcome_fetches_total{outcome=~"ok|InternalServerError|ServiceUnavailable|WelcomeNotFound"}[1h])) > 0.001`,
		`mlsd_welcome_confirmations_total{outcome="failure"}[1h]`,
		`mlsd_welcome_confirmations_total{outcome=~"success|failure"}[1h])) > 0.001`,
		`mlsd_idempotency_total{outcome="conflict"}[15m])) / sum(rate(mlsd_requests_total[15m])) > 0.001`,
	} {
		if !strings.Contains(string(alerts), expr) {
			t.Errorf("no alert has %s", expr)
		}
	}
}
