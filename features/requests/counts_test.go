package requests_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/requests"
	"mlsd/internal/pgtest"
	"mlsd/internal/worker"
)

func newCounter(db *pgxpool.Pool) *requests.Recorder {
	return requests.New(requests.Config{
		DB: db, Log: slog.New(slog.DiscardHandler), Keep: 24 * time.Hour, KeyConflict: "IdempotencyConflict",
	})
}

// conflict is a request of a caller that was refused because of another one.
func conflict(did, name, nsid, key string) requests.Request {
	return requests.Request{Caller: did, Admitted: true, NSID: nsid, Key: key, KeyUsed: true, Error: name, Conflict: true,
		Took: time.Second}
}

// refused is a request of alice that was refused because of another one.
func refused(name, nsid string) requests.Request { return conflict(alice, name, nsid, "k") }

// total returns the sum of one kind and how many hours it is spread over.
func total(t *testing.T, db *pgxpool.Pool, kind string) (n, hours int) {
	t.Helper()
	err := db.QueryRow(t.Context(), `
		SELECT coalesce(sum(n), 0), count(DISTINCT hour) FROM caller_counts WHERE kind = $1`, kind).Scan(&n, &hours)
	if err != nil {
		t.Fatal(err)
	}
	return n, hours
}

func flush(t *testing.T, cs ...*requests.Recorder) {
	t.Helper()
	for _, c := range cs {
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Two nodes count into the same hours, each conflict once.
func TestNodesAddUp(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	a, b := newCounter(db), newCounter(db)
	var wg sync.WaitGroup
	for _, node := range []*requests.Recorder{a, b} {
		for range 4 {
			wg.Go(func() {
				for range 50 {
					node.Add(refused("EpochMismatch", "addMembers"))
					node.Add(refused("EpochMismatch", "sendMessage"))
				}
				if err := node.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	flush(t, a, b, a)
	if n, _ := total(t, db, "EpochMismatch"); n != 2*4*50*2 {
		t.Errorf("%d conflicts", n)
	}
	if n, _ := total(t, db, "IdempotencyConflict"); n != 0 {
		t.Errorf("%d conflicts that were none", n)
	}
}

// Conflicts are kept for a month, without their callers after a week.
func TestConflictsAreKeptForAMonth(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	c.Add(refused("IdempotencyConflict", "createConvo"))
	flush(t, c)
	pgtest.Age(t, db, "caller_counts", 29*24*time.Hour)
	c.Add(refused("IdempotencyConflict", "createConvo"))
	flush(t, c)
	if n, hours := total(t, db, "IdempotencyConflict"); n != 2 || hours != 2 {
		t.Errorf("after 29 days: %d in %d hours", n, hours)
	}
	if _, _, named := sumOf(callerCounts(t, db)); named != 1 {
		t.Errorf("after 29 days %d callers have rows, want that of today", named)
	}
	pgtest.Age(t, db, "caller_counts", 2*24*time.Hour)
	flush(t, c)
	if n, hours := total(t, db, "IdempotencyConflict"); n != 1 || hours != 1 {
		t.Errorf("after 31 days: %d in %d hours", n, hours)
	}
}

// Run writes the counts at its end.
func TestLastCounts(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	c.Add(refused("RequestInProgress", "createConvo"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Run(ctx, worker.NewRounds(worker.Clock{}))
	if n, _ := total(t, db, "RequestInProgress"); n != 1 {
		t.Errorf("%d conflicts", n)
	}
}

// Counts of a failed write are dropped, because the database possibly has them.
func TestLostCounts(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := newCounter(db)
	c.Add(refused("EpochMismatch", "addMembers"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Flush(ctx); err == nil {
		t.Error("a write with an ended context succeeded")
	}
	flush(t, c)
	if n, _ := total(t, db, "EpochMismatch"); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}
