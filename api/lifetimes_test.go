package api_test

import (
	"net/http"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// After a record's lifetime a retry runs as new, and its answer says so. The write's own check
// prevents a second effect.
func TestExpiredHeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, kind := range keyed {
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			r := kind.make(w, newKey())
			first := r.send(w.server)
			first.ok()
			pgtest.Age(t, w.db, "idempotency_keys", 400*24*time.Hour, "expires_at")
			again := r.send(w.server)
			switch kind.later {
			case replay:
				if string(again.ok()) != string(first.body) {
					t.Fatalf("the retry got %s, the first answer was %s", again.body, first.body)
				}
			case runs:
				again.ok()
			default:
				again.fails(http.StatusConflict, kind.later)
			}
			// the record is the message, or the token
			if kind.name == "sendMessage" || kind.name == "eraseMyAccount, confirmed" {
				again.replays(first)
			} else if again.header.Get("X-Idempotency-Expired") != "true" || again.header.Get("X-Idempotency-Replay") != "" {
				t.Fatalf("the headers are %v", again.header)
			}
			if kind.name != "getKeyPackages" { // each call claims other KeyPackages
				r.once()
			}
		})
	}
}

// The lifetimes of records, as docs/IDEMPOTENCY.md states them.
func TestTTLPerOperation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, kind := range keyed {
		if kind.life == 0 {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			key := newKey()
			kind.make(w, key).send(w.server).ok()
			var life time.Duration
			if err := w.db.QueryRow(t.Context(), `SELECT expires_at - created_at FROM idempotency_keys WHERE key = $1`,
				*key).Scan(&life); err != nil {
				t.Fatal(err)
			}
			if off := (life - kind.life).Abs(); off > time.Second {
				t.Fatalf("a record lasts %s, want %s", life, kind.life)
			}
		})
	}
}

// sliding-midnight: partitioning keys by insertion day ran a retry twice across midnight. Here the
// request comes before midnight and its retries come after it, by the database's clock.
func TestSlidingMidnight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.ownClock = true })
	clock := pgtest.NewClock(t, w.db)
	for _, kind := range keyed {
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			today := func() (day string) {
				t.Helper()
				if err := w.db.QueryRow(t.Context(), `SELECT clock_timestamp()::date::text`).Scan(&day); err != nil {
					t.Fatal(err)
				}
				return day
			}
			clock.SetRight(t)
			r := kind.make(w, newKey())
			clock.SetBeforeMidnight(t, "10 s")
			first := r.send(w.server)
			first.ok()
			before := today()
			clock.SetBeforeMidnight(t, "-10 s")
			if today() == before {
				t.Fatal("it is still the day of the request")
			}
			r.send(w.server).replays(first)
			r.send(w.boot()).replays(first)
			r.once()
		})
	}
}

// A key that is used again after its record's lifetime belongs to the new request. The old request
// has no effect on it.
func TestReusedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	key := newKey()
	create := func() answer {
		in := alice.creation(newGroup(t))
		in.IdempotencyKey = key
		return alice.post(mlsapi.NSIDCreateConvo, in)
	}
	create().ok()
	create().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	c := alice.create(bob)
	commit := func() answer {
		in := alice.rotation(c)
		in.IdempotencyKey = key
		return alice.post(mlsapi.NSIDSubmitCommit, in)
	}
	commit().ok()
	c.epoch++
	commit().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	pgtest.Age(t, w.db, "idempotency_keys", 8*24*time.Hour, "expires_at")
	pgtest.Age(t, w.db, "messages", 8*24*time.Hour)
	for _, a := range []answer{create(), commit()} {
		if a.ok(); a.header.Get("X-Idempotency-Expired") != "true" {
			t.Fatalf("the headers are %v", a.header)
		}
	}
}

// A replay has the bytes of the first answer, and a header that marks it. The first answer has no
// such header.
func TestReplayHeader(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		first := r.send(w.server)
		first.ok()
		if first.header.Get("X-Idempotency-Replay") != "" {
			t.Error("the first answer is marked as a replay")
		}
		r.send(w.server).replays(first)
	})
}
