package network

import (
	"strconv"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
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
		{"of a budget that has shrunk", budget{perDay: 10, used: 20}, 20, 11 * day / 10},
		{"nearly after the wait", budget{perDay: 100, used: 100, since: day/100 - time.Millisecond}, 100, time.Second},
	} {
		used, wait := c.b.spend()
		if d := used - c.used; d > 1e-6 || d < -1e-6 || (wait-c.wait).Abs() > time.Microsecond {
			t.Errorf("%s: %v used, wait %s; want %v, %s", c.what, used, wait, c.used, c.wait)
		}
	}
}

// A service that was never called, or whose last call failed, has one place, and pauses that double.
// One that answers has more.
func TestHomes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomes(func() time.Time { return now }, func(longest time.Duration) time.Duration { return longest })
	places := func() (n int) {
		for {
			proven, ok := h.acquire("did:web:a")
			if !ok {
				break
			}
			defer h.release("did:web:a", proven, false, false)
			n++
		}
		return n
	}
	end := func(answered bool) {
		t.Helper()
		proven, ok := h.acquire("did:web:a")
		if !ok {
			t.Fatal("there is no place")
		}
		h.release("did:web:a", proven, true, answered)
	}
	if n := places(); n != 1 {
		t.Errorf("a new one has %d places", n)
	}
	end(true)
	if n := places(); n != perHome {
		t.Errorf("one that has answered has %d places", n)
	}
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		end(false)
		now = now.Add(pause - 1)
		if n, paused := places(), h.paused(); n != 0 || len(paused) != 1 {
			t.Errorf("%d places in a pause; %v", n, paused)
		}
		now = now.Add(1)
		if n, paused := places(), h.paused(); n != 1 || len(paused) != 0 {
			t.Errorf("%d places after a pause; %v", n, paused)
		}
	}
	for range 20 {
		end(false)
		now = now.Add(lastPause)
	}
	end(true)
	if n := places(); n != perHome {
		t.Errorf("one that is back has %d places", n)
	}
	if h.running != 0 || h.unproven != 0 {
		t.Errorf("%d run, %d unproven", h.running, h.unproven)
	}
}

// Services that do not answer cannot take all places.
func TestManySilentHomes(t *testing.T) {
	t.Parallel()
	h := newHomes(time.Now, func(longest time.Duration) time.Duration { return longest })
	proven, _ := h.acquire("did:web:well")
	h.release("did:web:well", proven, true, true)
	silent := 0
	for i := range allCalls {
		if _, ok := h.acquire(syntax.DID("did:web:silent" + strconv.Itoa(i))); ok {
			silent++
		}
	}
	if _, ok := h.acquire("did:web:well"); silent != unproven || !ok {
		t.Errorf("%d silent ones have places; one that answers: %t", silent, ok)
	}
}
