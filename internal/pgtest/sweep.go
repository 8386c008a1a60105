package pgtest

import (
	"context"
	"testing"

	"mlsd/internal/worker"
)

// Sweep runs sweeps once, in order. It returns how many rows each sweep has ended, without sweeps
// that have ended no rows.
func Sweep(t testing.TB, sweeps ...worker.Sweep) map[string]int64 {
	t.Helper()
	ended := map[string]int64{}
	err := worker.Sweeper(func(rows string, n int64) {
		if n > 0 {
			ended[rows] += n
		}
	}, sweeps...)(context.Background())
	must(t, err)
	return ended
}
