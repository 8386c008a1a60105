package erasure

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

const alice = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

// newJob returns a worker with one job, of one step.
func newJob(t *testing.T, run func(context.Context, *job) (bool, error)) (*Worker, *pgxpool.Pool, uuid.UUID) {
	t.Helper()
	db, store := pgtest.Database(t), accounts.NewStore(0, convos.HandOver)
	jobs := &Store{accounts: store}
	w := NewWorker(Config{DB: db, Log: slog.New(slog.DiscardHandler), Jobs: jobs, Accounts: store})
	w.steps = []step{{name: "the step", run: run}}
	var id uuid.UUID
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		id, _, err = jobs.Begin(t.Context(), tx, alice, ByAccount, "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, db, id
}

// A batch begins only if the round has time for it, so that the end of a round does not count as a
// failure of the job.
func TestNoBatchIsCutOff(t *testing.T) {
	t.Parallel()
	batches := 0
	w, db, id := newJob(t, func(context.Context, *job) (bool, error) {
		batches++
		return true, nil
	})
	for _, round := range []struct {
		limit   time.Duration
		batches int
		state   string
	}{{batchReserve - time.Second, 0, Running}, {RoundTimeout, 1, Finished}} {
		ctx, cancel := context.WithTimeout(t.Context(), round.limit)
		defer cancel()
		if err := w.RunOnce(ctx); err != nil {
			t.Fatal(err)
		}
		e, err := w.cfg.Jobs.Get(t.Context(), db, id)
		if err != nil || batches != round.batches || e.State != round.state || e.Failures != 0 {
			t.Errorf("a round of %v: %d batches, %+v, %v", round.limit, batches, e, err)
		}
	}
}

// The pause after a failure is as long as the job has not moved, within its bounds.
func TestPauseAfterAFailure(t *testing.T) {
	t.Parallel()
	failure := errors.New("the batch fails")
	w, db, id := newJob(t, func(context.Context, *job) (bool, error) { return false, failure })
	for i, c := range []struct{ moved, least, most time.Duration }{
		{0, retryAfter, retryAfter},
		{2 * time.Minute, 2 * time.Minute, longestRetry},
		{24 * time.Hour, longestRetry, longestRetry},
	} {
		_, err := db.Exec(t.Context(), `
			UPDATE erasures SET not_before = clock_timestamp(), moved_at = clock_timestamp() - nullif($1::interval, interval
				'0')`, c.moved)
		if err != nil {
			t.Fatal(err)
		}
		var before, after, next time.Time
		failures := 0
		read := func(sql string, to ...any) {
			if err := db.QueryRow(t.Context(), sql).Scan(to...); err != nil {
				t.Fatal(err)
			}
		}
		read(`SELECT clock_timestamp()`, &before)
		if err := w.RunOnce(t.Context()); !errors.Is(err, failure) {
			t.Errorf("round %d of job %s: %v", i, id, err)
		}
		read(`SELECT clock_timestamp(), not_before, failures FROM erasures`, &after, &next, &failures)
		if next.Before(before.Add(c.least)) || next.After(after.Add(c.most)) || failures != i+1 {
			t.Errorf("not moved for %v: the next batch is %v later, after %d failures", c.moved, next.Sub(before), failures)
		}
	}
}

// Unused tokens are deleted when they have expired.
func TestSweep(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	_, err := db.Exec(t.Context(), `
		INSERT INTO erasure_confirmations (hash, did, expires_at) VALUES ('a', 'did:plc:a', now() - interval '1 h'), ('b',
			'did:plc:b', now() + interval '1 h')`)
	if err != nil {
		t.Fatal(err)
	}
	if done := pgtest.Sweep(t, Sweep(db)); done["erasure_confirmations"] != 1 {
		t.Errorf("deleted were %v, want one", done)
	}
}

// An erasure that is asked for in the moment in which the one before ends begins anew.
func TestBegunWhileOneEnds(t *testing.T) {
	t.Parallel()
	w, db, first := newJob(t, nil)
	waiting, release := pgtest.HoldInserts(t, db, "erasures")
	again := make(chan uuid.UUID)
	go func() {
		var id uuid.UUID
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
			id, _, err = w.cfg.Jobs.Begin(t.Context(), tx, alice, ByAccount, "")
			return err
		})
		if err != nil {
			t.Error(err)
		}
		again <- id
	}()
	for waiting() < 1 {
		runtime.Gosched()
	}
	if _, err := db.Exec(t.Context(), `DELETE FROM erasures`); err != nil {
		t.Fatal(err)
	}
	release()
	if id := <-again; id == first {
		t.Error("the erasure is the one that has ended")
	}
}

// A service that answers slowly keeps its own person's erasure waiting, and no other.
func TestErasuresGoOnWhileAServiceIsAsked(t *testing.T) {
	t.Parallel()
	const slow, bob = "did:web:slow.example", "did:plc:bobbbbbbbbbbbbbbbbbbbbbb"
	erased := make(chan struct{})
	w, db, _ := newJob(t, func(_ context.Context, j *job) (bool, error) {
		if j.person.DID == bob {
			close(erased)
			return true, nil
		}
		if len(j.services) == 0 {
			j.asks, j.wait = []syntax.DID{slow}, askLease
		}
		return len(j.services) > 0, nil
	})
	w.cfg.Tell = func(ctx context.Context, _, _ syntax.DID) (bool, error) {
		select {
		case <-erased:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, _, err := w.cfg.Jobs.Begin(t.Context(), tx, bob, ByAccount, "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), batchReserve+10*time.Second)
	defer cancel()
	if err := w.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	for _, did := range []syntax.DID{alice, bob} {
		var state string
		err := db.QueryRow(t.Context(), `
			SELECT coalesce((SELECT state FROM erasures WHERE did = $1), 'finished')`, did).Scan(&state)
		if err != nil || state != Finished {
			t.Errorf("the erasure of %s is %s, %v", did, state, err)
		}
	}
}
