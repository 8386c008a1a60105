// Package failpointtest arms failpoints in tests.
package failpointtest

import (
	"testing"

	"mlsd/internal/failpoint"
)

// Arm arms a point of a set. If there is no such point, the test ends.
func Arm(t testing.TB, set *failpoint.Set, point, method string, action failpoint.Action) {
	t.Helper()
	if err := set.Arm(point, method, action); err != nil {
		t.Fatal(err)
	}
}
