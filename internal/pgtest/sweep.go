package pgtest

import (
	"context"
	"testing"

	"mlsd/internal/worker"
)

// Sweep does sweeps once, in their order, and returns how many rows each has ended, without those that
// have ended none.
func Sweep(t testing.TB, sweeps ...worker.Sweep) map[string]int64 {
	t.Helper()
	ended := map[string]int64{}
	err := worker.Sweeper(func(rows string, n int64) {
		if n > 0 {
			ended[rows] += n
		}
	}, sweeps...)(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return ended
}
