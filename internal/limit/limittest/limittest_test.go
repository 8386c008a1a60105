package limittest_test

import (
	"runtime"
	"sync"
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

// recorder is a test whose failure is recorded.
type recorder struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(...any)     { r.failed = true }
func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}

// G1: what a test leaves reserved fails it, wherever the server keeps the queue.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := limit.NewMemory(limit.Bound{Size: 10}, limit.Bound{Above: 5, Size: 10})
		s := &server{parts: []any{memory, &limit.Queue{Size: 1}}}
		fails := func(roots ...any) bool {
			r := &recorder{TB: t}
			limittest.Watch(r, func() []any { return roots })
			var ended sync.WaitGroup
			ended.Go(r.cleanups[0])
			ended.Wait()
			return r.failed
		}
		want := func(what string, failed bool) {
			t.Helper()
			if fails(s) != failed {
				t.Errorf("%s: the test fails: %t", what, !failed)
			}
		}
		want("nothing is reserved", false)
		var r limit.Reservation
		memory.TryReserve(&r, limit.Client{Key: "alice"}, 3, 3)
		want("a small request", true)
		memory.TryReserve(&r, limit.Client{Key: "alice"}, 8, 8)
		want("a large request has replaced it", true)
		r.Release()
		want("it is released", false)
		s.own.TryAcquire("alice", 1)
		want("a queue in the struct", true)
		if !fails(&struct{}{}) {
			t.Error("nothing to watch passes")
		}
	})
}
