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
		{"one too many", budget{perDay: 100, used: 100}, 101, day / 100},
		{"after half the wait", budget{perDay: 100, used: 100, since: day / 200}, 100.5, day / 200},
		{"after the wait", budget{perDay: 100, used: 100, since: day / 100}, 100, 0},
		{"after a day", budget{perDay: 100, used: 100, since: day}, 1, 0},
		{"after a year", budget{perDay: 100, used: 100, since: 365 * day}, 1, 0},
		{"nearly after the wait", budget{perDay: 100, used: 100, since: day/100 - time.Millisecond}, 100, time.Second},
	} {
		used, wait := c.b.spend(c.b.perDay)
		if d := used - c.used; d > 1e-5 || d < -1e-5 || (wait-c.wait).Abs() > time.Microsecond {
			t.Errorf("%s: %v used, wait %s; want %v, %s", c.what, used, wait, c.used, c.wait)
		}
	}
}

// A few busy inviters leave half of their domain's budget to others: with four who have used 10
// each, twenty more can make two invitations each. Only the 81st in a day waits, for 18 minutes.
func TestBudgetIsShared(t *testing.T) {
	t.Parallel()
	const soon = day / provenPerDay
	for _, c := range []struct {
		domain, inviter float64 // used before
		wait            time.Duration
	}{
		{0, 0, 0}, {39, 9, 0}, {39, 10, day / inviterPerDay},
		{40, 1, 0}, {40, 2, soon}, {48, 2, 9 * soon}, {79, 0, 0}, {79, 1, 0},
		{80, 0, soon}, {80, 1, soon},
	} {
		_, wait := spend([]budget{{perDay: provenPerDay, used: c.domain}, {perDay: inviterPerDay, used: c.inviter}})
		if wait != c.wait {
			t.Errorf("%v of the domain, %v of the inviter: wait %s, want %s", c.domain, c.inviter, wait, c.wait)
		}
	}
	if _, wait := spend([]budget{{perDay: unprovenPerDay, used: 19}}); wait != 0 {
		t.Errorf("an unproven one waits %s", wait)
	}
	domain, inviters := 0.0, 0
	for ; ; inviters++ { // each takes what it gets
		own := 0.0
		for {
			used, wait := spend([]budget{{perDay: provenPerDay, used: domain}, {perDay: inviterPerDay, used: own}})
			if wait > 0 {
				break
			}
			domain, own = used[0], used[1]
		}
		if own == 0 {
			break
		}
	}
	if domain != provenPerDay || inviters != 24 {
		t.Errorf("%d inviters use up %v", inviters, domain)
	}
}
