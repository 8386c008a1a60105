package console

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The rates are of the last hour. A share above 0.1 % is bad, if more than two have failed. What a
// client asks wrongly is no failure of the server.
func TestFailureRates(t *testing.T) {
	t.Parallel()
	fetches := prometheus.NewCounterVec(prometheus.CounterOpts{Name: welcomeFetches}, []string{"outcome"})
	confirms := prometheus.NewCounterVec(prometheus.CounterOpts{Name: welcomeConfirms}, []string{"outcome"})
	node := prometheus.NewRegistry()
	node.MustRegister(fetches, confirms)
	h := newHistory(node)
	at := noon
	pass := func(steps int) {
		t.Helper()
		for range steps {
			at = at.Add(step)
			if err := h.add(at); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(when, all, failed, share string, bad bool) {
		t.Helper()
		for _, r := range h.failures() {
			if r.Of() != all || r.Count() != failed || r.Share() != share || r.Bad() != bad {
				t.Errorf("%s: %s: %s of %s failed, %s, bad %t", when, r.What, r.Count(), r.Of(), r.Share(), r.Bad())
			}
		}
	}
	pass(2)
	want("at first", "0", "0", "–", false)
	fetches.WithLabelValues("ok").Add(2995)
	fetches.WithLabelValues("NotMember").Add(900)
	fetches.WithLabelValues("WelcomeNotFound").Add(2)
	fetches.WithLabelValues("InternalServerError").Add(1)
	confirms.WithLabelValues("success").Add(2995)
	confirms.WithLabelValues("unknown").Add(900)
	confirms.WithLabelValues("failure").Add(3)
	pass(1)
	want("three of 2,998", "2,998", "3", "0.1 %", true)
	fetches.WithLabelValues("ok").Add(2)
	confirms.WithLabelValues("success").Add(2)
	pass(kept - 2)
	want("three of 3,000", "3,000", "3", "0.1 %", false)
	pass(int(time.Minute / step))
	want("an hour later", "0", "0", "–", false)
	fetches.WithLabelValues("ServiceUnavailable").Add(2)
	confirms.WithLabelValues("failure").Add(2)
	pass(1)
	want("two of two", "2", "2", "100 %", false)
}
