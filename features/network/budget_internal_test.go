package network

import (
	"testing"
	"time"
)

// A budget is for a day: what is used goes evenly.
func TestBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		b    budget
		used float64
		wait time.Duration
	}{
		{"a first one", budget{perDay: 100}, 1, 0},
		{"the last one", budget{perDay: 100, used: 99}, 100, 0},
		{"one too many", budget{perDay: 100, used: 100}, 100, day / 100},
		{"after half the wait", budget{perDay: 100, used: 100, since: day / 200}, 100, day / 200},
		{"after the wait", budget{perDay: 100, used: 100, since: day / 100}, 100, 0},
		{"after a day", budget{perDay: 100, used: 100, since: day}, 1, 0},
		{"after a year", budget{perDay: 100, used: 100, since: 365 * day}, 1, 0},
		{"nearly after the wait", budget{perDay: 100, used: 100, since: day/100 - time.Millisecond}, 100, time.Second},
	} {
		used, wait := c.b.spend()
		if d := used - c.used; d > 1e-6 || d < -1e-6 || (wait-c.wait).Abs() > time.Microsecond {
			t.Errorf("%s: %v used, wait %s; want %v, %s", c.what, used, wait, c.used, c.wait)
		}
	}
}
