package invariants

import (
	"context"
	"errors"
	"testing"

	"mlsd/internal/pgtest"
)

// A check of the whole database waits for the one before it, as long as its caller waits.
func TestOneCheckAtATime(t *testing.T) {
	t.Parallel()
	c := NewChecker(pgtest.Database(t))
	c.running <- struct{}{} // another check runs
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	if _, err := c.Check(gone, Cursor{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a check for a caller that has gone: %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := c.Check(t.Context(), Cursor{})
		ended <- err
	}()
	<-c.running // the other check has ended
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(c.running) != 0 {
		t.Error("the checker still counts a check as running")
	}
	if got := c.State(); got != (Progress{}) {
		t.Errorf("after the check: %v", got)
	}
}

// A checker keeps the results of the last checks.
func TestResultsOfChecks(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c := NewChecker(db)
	for range remembered + 1 {
		if _, err := c.Check(t.Context(), Cursor{}); err != nil {
			t.Fatal(err)
		}
	}
	results := c.Results()
	if len(results) != remembered || results[0].At.Before(results[1].At) || results[0].Failed ||
		len(results[0].Violations) != 0 {
		t.Errorf("%d results, the newest %+v", len(results), results[0])
	}
}
