package push_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
)

// operate runs an operator's change of the only job.
func (b *bench) operate(change func(tx pgx.Tx, id uuid.UUID) error) error {
	b.t.Helper()
	var id uuid.UUID
	if err := b.db.QueryRow(b.t.Context(), `SELECT id FROM push_jobs WHERE did = $1 ORDER BY created_at LIMIT 1`,
		bob).Scan(&id); err != nil {
		b.t.Fatal(err)
	}
	return pgx.BeginFunc(b.t.Context(), b.db, func(tx pgx.Tx) error { return change(tx, id) })
}

func (b *bench) retry() error {
	return b.operate(func(tx pgx.Tx, id uuid.UUID) error {
		_, err := push.Retry(b.t.Context(), tx, bob, id)
		return err
	})
}

func (b *bench) drop() error {
	return b.operate(func(tx pgx.Tx, id uuid.UUID) error { return push.Drop(b.t.Context(), tx, bob, id) })
}

// An operator makes a job due that waits for its next attempt.
func TestRetryNow(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *push.Config) { c.Jitter = func(time.Duration) time.Duration { return time.Hour } })
	b.phone.answers(status(http.StatusServiceUnavailable))
	b.send("hello")
	b.run()
	b.phone.answers(nil)
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls before the operator acts", len(calls))
	}
	if err := b.retry(); err != nil {
		t.Fatal(err)
	}
	b.passed.Store(int64(time.Hour)) // the host's failures are forgotten
	b.run()
	if jobs := b.jobs(); len(b.phone.taken()) != 1 || len(jobs) != 1 || jobs[0].State != "done" {
		t.Errorf("%+v", jobs)
	}
	if err := b.retry(); !errors.Is(err, push.ErrEnded) {
		t.Errorf("a job that is done: %v", err)
	}
}

// An operator drops a job: it ends without another call. To try a dead one again makes a new job.
func TestDropAndRetryDead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(http.StatusServiceUnavailable))
	b.send("hello")
	b.run()
	b.phone.taken()
	b.phone.answers(nil)
	if err := b.drop(); err != nil {
		t.Fatal(err)
	}
	b.passed.Store(int64(time.Hour))
	b.run()
	if jobs := b.jobs(); len(b.phone.taken()) != 0 || len(jobs) != 1 || jobs[0].State != "dead" ||
		jobs[0].Error != "dropped by an operator" {
		t.Fatalf("after the drop: %+v", jobs)
	}
	if err := b.drop(); !errors.Is(err, push.ErrEnded) {
		t.Errorf("a dead job: %v", err)
	}
	if err := errors.Join(b.retry(), b.retry()); err != nil {
		t.Fatal(err)
	}
	b.run()
	if jobs := b.jobs(); len(b.phone.taken()) != 1 || len(jobs) != 2 {
		t.Errorf("after the new attempt: %+v", jobs)
	}
}

// What operators see: the jobs that wait in the order in which they are due, and the dead ones.
func TestLists(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 3 {
		b.exec(`
			INSERT INTO push_jobs (did, id, device_id, reason, state, attempts, next_attempt_at, created_at, ended_at) VALUES
			($1, gen_random_uuid(), 'w' || $2::int, 'message', 'pending', 0, now() + $2::int * interval '1 s', now(), NULL),
			($1, gen_random_uuid(), 'd' || $2::int, 'message', 'dead', 1, now(), now(), now() - $2::int * interval '1 s'),
			($1, gen_random_uuid(), 'x' || $2::int, 'message', 'done', 1, now(), now(), now() - $2::int * interval '1 s')`, bob,
			i)
	}
	var seen string
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		after, before := push.Place{}, push.Place{At: time.Now().Add(time.Hour)}
		for range 3 {
			waiting, err := push.Waiting(t.Context(), tx, after, 1)
			if err != nil || len(waiting) != 1 {
				t.Fatalf("%d jobs wait: %v", len(waiting), err)
			}
			dead, err := push.DeadLetters(t.Context(), tx, before, 1)
			if err != nil || len(dead) != 1 {
				t.Fatalf("%d jobs are dead: %v", len(dead), err)
			}
			after, before = push.Place{At: waiting[0].NextAttempt, ID: waiting[0].ID},
				push.Place{At: *dead[0].EndedAt, ID: dead[0].ID}
			seen += waiting[0].DeviceID + dead[0].DeviceID
		}
		return nil
	})
	if err != nil || seen != "w0d0w1d1w2d2" {
		t.Errorf("seen %s: %v", seen, err)
	}
}
