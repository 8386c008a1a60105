package limittest_test

import (
	"testing"
	"testing/synctest"

	"mlsd/internal/limit"
	"mlsd/internal/limit/limittest"
)

// server reserves memory as a server does: behind pointers, interfaces and slices.
type server struct {
	parts []any
	own   limit.Queue
}

// recorder is a test whose failures are counted.
type recorder struct {
	testing.TB
	cleanups []func()
	failures int
}

func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.failures++ }
func (r *recorder) Error(...any)          { r.failures++ }

// G1: what a test leaves reserved fails it, wherever the server keeps the queue.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := limit.NewMemory(limit.Bound{Size: 10}, limit.Bound{Above: 5, Size: 10})
		s := &server{parts: []any{memory, &limit.Queue{Size: 1}}}
		failures := func(roots ...any) int {
			r := &recorder{TB: t}
			limittest.Watch(r, func() []any { return roots })
			for _, f := range r.cleanups {
				f()
			}
			return r.failures
		}
		want := func(what string, n int) {
			t.Helper()
			if got := failures(s); got != n {
				t.Errorf("%s: %d failures, want %d", what, got, n)
			}
		}
		want("nothing is reserved", 0)
		var r limit.Reservation
		memory.TryReserve(&r, limit.Client{Key: "alice"}, 3, 3)
		want("a small request", 1)
		memory.TryReserve(&r, limit.Client{Key: "alice"}, 8, 8)
		want("a large request has replaced it", 2)
		r.Release()
		want("it is released", 0)
		s.own.TryAcquire("alice", 1)
		want("a queue in the struct", 1)
		if failures(&struct{}{}) != 1 {
			t.Error("nothing to watch passes")
		}
	})
}
