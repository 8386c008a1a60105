package clock_test

import (
	"strings"
	"testing"
	"time"

	"mlsd/internal/clock"
)

func TestOffset(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name       string
		took, now  time.Duration // of the answer, and the database's time in it, after the question
		want       time.Duration
		fault      string // in the fault; "" if there is none
		beforehand time.Duration
	}{
		{name: "the same time", took: 4 * time.Second, now: 2 * time.Second},
		{name: "within the bound", now: 20 * time.Second, want: 20 * time.Second},
		{name: "ahead", now: 95 * time.Second, want: 95 * time.Second, fault: "1m35s ahead of"},
		{name: "behind", now: -time.Hour, want: -time.Hour, fault: "1h0m0s behind"},
		{name: "an answer that took too long", took: 30 * time.Second, now: time.Hour, beforehand: time.Second,
			want: time.Second},
		{name: "a clock that was set back", took: -time.Hour, now: 0, beforehand: time.Second, want: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := &clock.Offset{}
			o.Measure(at, at.Add(tc.beforehand), at)
			o.Measure(at, at.Add(tc.now), at.Add(tc.took))
			if got := o.Ahead(); got != tc.want {
				t.Errorf("the database is %v ahead, want %v", got, tc.want)
			}
			if got := o.Fault(); (got == "") != (tc.fault == "") || !strings.Contains(got, tc.fault) {
				t.Errorf("fault %q, want %q", got, tc.fault)
			}
		})
	}
	if (*clock.Offset)(nil).Fault() != "" {
		t.Error("no offset has a fault")
	}
}
