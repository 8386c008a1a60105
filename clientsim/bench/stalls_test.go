package bench

import "testing"

// A request counts as delayed if it was under way during a stall, or due while the server caught up:
// for as long again as the stall took.
func TestUndelayed(t *testing.T) {
	t.Parallel()
	const us = 1000
	stalls := []stall{{from: 1000 * us, to: 2000 * us, disk: true}}
	for _, c := range []struct {
		timed
		delayed bool
	}{
		{timed{500 * us, 999 * us}, false},
		{timed{500 * us, 1001 * us}, true},
		{timed{1500 * us, 2100 * us}, true},
		{timed{2999 * us, 3100 * us}, true},
		{timed{3000 * us, 3100 * us}, false},
	} {
		l := undelayed([]timed{c.timed}, stalls)
		if delayed := l.TotalCount() == 0; delayed != c.delayed {
			t.Errorf("a request from %d to %d µs: delayed %t, want %t", c.due/us, c.done/us, delayed, c.delayed)
		}
		if n := undelayed([]timed{c.timed}, nil).TotalCount(); n != 1 {
			t.Errorf("without a stall %d requests are left", n)
		}
	}
}
