package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/internal/worker"
)

// batches is a sweep whose batches end so many rows. After the last one it fails with err, if that is
// not nil.
func batches(rows string, err error, ns ...int64) worker.Sweep {
	return worker.Sweep{Rows: rows, Batch: func(context.Context) (n int64, more bool, _ error) {
		if len(ns) == 0 {
			return 0, false, err
		}
		n, ns = ns[0], ns[1:]
		return n, err != nil || len(ns) > 0, nil
	}}
}

// A sweep goes on until no batch is left. One that fails keeps none of the others from their turn, and
// what it has ended before counts.
func TestSweepsAreIndependent(t *testing.T) {
	t.Parallel()
	broken := errors.New("no luck")
	swept := map[string]int64{}
	sweep := worker.Sweeper(func(rows string, n int64) { swept[rows] += n },
		batches("first", nil, 3, 2), batches("second", broken, 4), batches("third", nil, 5))
	if diff := cmp.Diff(map[string]int64{"first": 0, "second": 0, "third": 0}, swept); diff != "" {
		t.Errorf("before the first round (-want +got):\n%s", diff)
	}
	if err := sweep(t.Context()); !errors.Is(err, broken) {
		t.Errorf("the round says %v", err)
	}
	if diff := cmp.Diff(map[string]int64{"first": 5, "second": 4, "third": 5}, swept); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
