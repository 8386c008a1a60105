// Package await lets tests wait for what nothing signals.
package await

import (
	"testing"
	"time"
)

const (
	// limit is how long a test waits. A wait is usually much shorter.
	limit = time.Minute
	// pause is the time between two looks. A look can be a call that a rate limit counts.
	pause = 10 * time.Millisecond
)

// Until looks until a condition is true. If that takes a minute, the test ends.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !condition(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", limit, what)
		}
	}
}
