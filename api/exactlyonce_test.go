package api_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
)

// A hundred identical requests over two nodes have one effect, and all get the same answer.
func TestHundredAtOnce(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		other := w.boot()
		same(t, r, together(100, func(i int) answer {
			if i%2 == 1 {
				return r.send(other)
			}
			return r.send(w.server)
		}))
		r.once()
		r.send(other).replays(r.send(w.server))
	})
}

// The same without a key: the writes' own checks prevent a second effect.
func TestHundredAtOnceWithoutKey(t *testing.T) {
	t.Parallel()
	each(t, guarded(), noKey, func(t *testing.T, w *world, r request) {
		other := w.boot()
		same(t, r, together(20, func(i int) answer {
			if i%2 == 1 {
				return r.send(other)
			}
			return r.send(w.server)
		}))
		r.once()
	})
}

// A retry gets the first answer and changes nothing.
func TestRetryChangesNothing(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		first := r.send(w.server)
		first.ok()
		if first.header.Get("X-Idempotency-Replay") != "" {
			t.Fatal("the first answer is marked as a replay")
		}
		before := w.digest()
		r.send(w.boot()).replays(first)
		if w.digest() != before {
			t.Fatal("the retry has changed what is stored")
		}
	})
}

// Without a key the answer to a retry has the same bytes, and no second effect.
func TestRetryWithoutKey(t *testing.T) {
	t.Parallel()
	each(t, guarded(), noKey, func(t *testing.T, w *world, r request) {
		same(t, r, []answer{r.send(w.server), r.send(w.boot()), r.send(w.server)})
		r.once()
	})
}

// The answer to the COMMIT is lost: the server looks the outcome up and answers with it.
func TestLostAfterCommit(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		w.arm(failpoint.AfterCommit, r, failpoint.Error)
		first := r.send(w.server)
		first.ok()
		r.once()
		r.send(w.boot()).replays(first)
		r.once()
	}, faulty)
}

// Without a key the server cannot always find out the outcome. It says so, and the retry is safe.
func TestLostAfterCommitWithoutKey(t *testing.T) {
	t.Parallel()
	each(t, guarded(), noKey, func(t *testing.T, w *world, r request) {
		w.arm(failpoint.AfterCommit, r, failpoint.Error)
		first := r.send(w.server)
		r.once()
		if first.status != http.StatusOK {
			first.unavailable()
		}
		again := r.send(w.server)
		again.ok()
		if first.status == http.StatusOK {
			same(t, r, []answer{first, again})
		}
		r.once()
	}, faulty)
}

// The write fails just before its COMMIT: nothing has happened, and the retry is a first request.
// The server itself repeats writes that share their transaction and can be repeated.
func TestLostBeforeCommit(t *testing.T) {
	t.Parallel()
	writes := append(keyed[:len(keyed):len(keyed)], unkeyed...)
	each(t, writes, newKey, func(t *testing.T, w *world, r request) {
		before := w.digest()
		w.arm(failpoint.BeforeCommit, r, failpoint.Error)
		failed := r.send(w.server)
		if r.retried() {
			failed.ok()
			r.once()
			return
		}
		if failed.status < 500 {
			t.Fatalf("the failed write is answered with %d %s", failed.status, failed.body)
		}
		if w.digest() != before {
			t.Fatal("the failed write has left something behind")
		}
		retry := r.send(w.server)
		retry.ok()
		if retry.header.Get("X-Idempotency-Replay") != "" {
			t.Fatal("the retry of a write that did not happen is marked as a replay")
		}
		r.once()
	}, faulty)
}

// The database session dies just before a write commits. The answer is to retry, and the write has
// its effect once.
func TestSessionLostAtCommit(t *testing.T) {
	t.Parallel()
	writes := append(keyed[:len(keyed):len(keyed)], unkeyed...)
	each(t, writes, newKey, func(t *testing.T, w *world, r request) {
		answered, resume := w.pause(r)
		w.endSession()
		resume()
		if answer := <-answered; r.retried() {
			answer.ok()
		} else {
			answer.unavailable()
		}
		r.send(w.server).ok()
		r.once()
	})
}

// The database session dies just before a write commits, and a repetition at another node does the
// write. The server finds the record of that one, and gives its answer. Found by clientsim torture:
// a claim of the same KeyPackages has the same record, and yet another end.
func TestSessionLostAtCommitOfARepeatedWrite(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		answered, resume := w.pause(r)
		w.endSession()
		repeated := r.send(w.boot())
		repeated.ok()
		resume()
		same(t, r, []answer{<-answered, repeated, r.send(w.server)})
		r.once()
	})
}

// endSession ends the one session that waits for its client in a transaction.
func (w *world) endSession() {
	w.t.Helper()
	ended := 0
	for deadline := time.Now().Add(time.Minute); ended == 0 && time.Now().Before(deadline); {
		ended = w.count(`
			SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND xact_start IS NOT NULL AND wait_event = 'ClientRead'`)
	}
	if ended != 1 {
		w.t.Fatalf("%d sessions were ended", ended)
	}
}

// retried reports whether the server itself tries r again. It does so for writes that take no key
// and are safe to repeat.
func (r request) retried() bool {
	return r.nsid == mlsapi.NSIDUpdateCursor || r.nsid == mlsapi.NSIDConfirmWelcome || r.nsid == mlsapi.NSIDGetWelcome
}

// The client hangs up just before its write commits. The write does not happen, and the next
// request with its key is a first one. A message is written nevertheless, because other messages
// can share its transaction. Then the next request is a repetition.
func TestClientGone(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		before := w.digest()
		ctx, hangUp := context.WithCancel(t.Context())
		gone := r
		gone.by = r.by.on(w.server)
		gone.by.w.ctx = ctx
		answered, resume := w.pause(gone)
		hangUp()
		(<-answered).unavailable()
		if r.nsid == mlsapi.NSIDSendMessage {
			resume()
			retry := r.send(w.server)
			retry.ok()
			if retry.header.Get("X-Idempotency-Replay") != "true" {
				t.Error("the message has not been written")
			}
			r.once()
			return
		}
		if w.digest() != before {
			t.Fatal("the abandoned write has left something behind")
		}
		r.send(w.server).ok()
		r.once()
	})
}

// arm makes the next write of r's method do action at point.
func (w *world) arm(point string, r request, action failpoint.Action) {
	w.t.Helper()
	failpointtest.Arm(w.t, w.faults, point, r.nsid, action)
}

// pause sends r and returns when its write is just before COMMIT. There the write waits for resume.
func (w *world) pause(r request) (answered <-chan answer, resume func()) {
	w.t.Helper()
	w.arm(failpoint.BeforeCommit, r, failpoint.Pause)
	answers := make(chan answer, 1)
	go func() { answers <- r.send(w.server) }()
	select {
	case <-w.faults.Reached(failpoint.BeforeCommit, r.nsid):
	case a := <-answers:
		w.t.Fatalf("the write is answered before it commits: %d %s", a.status, a.body)
	}
	resume = sync.OnceFunc(func() { w.faults.Resume(failpoint.BeforeCommit, r.nsid) })
	w.t.Cleanup(resume)
	return answers, resume
}

// unavailable fails the test unless the answer is 503 with the time to retry.
func (a answer) unavailable() {
	a.t.Helper()
	a.fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	if a.header.Get("Retry-After") == "" {
		a.t.Fatal("a 503 without Retry-After")
	}
}
