package invariants

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// remembered is how many results a Checker keeps.
const remembered = 20

// Checker checks the database. It runs one check at a time, because a check can take minutes and
// needs a connection. It reports the progress of a check, and remembers the last results in memory.
type Checker struct {
	db      *pgxpool.Pool
	running chan struct{} // holds a value during a check

	mu       sync.Mutex // guards the fields below
	progress Progress
	results  []Result // the newest first
}

// Progress is the progress of a check. Since is zero if no check is running.
type Progress struct {
	Promise string    // the promise that is being verified
	Convos  int       // how many convos have been verified
	Of      int       // about how many there are; 0: it is not known
	Since   time.Time // when the check began
}

// String describes the progress in words.
func (p Progress) String() string {
	if p.Since.IsZero() {
		return "no check runs"
	}
	return fmt.Sprintf("%d of about %d convos: %s", p.Convos, max(p.Convos, p.Of), p.Promise)
}

// Result is the result of a check.
type Result struct {
	At         time.Time // when the check began
	Took       time.Duration
	Violations []string
	Failed     bool // the check could not be completed
}

// NewChecker returns a checker.
func NewChecker(db *pgxpool.Pool) *Checker {
	return &Checker{db: db, running: make(chan struct{}, 1)}
}

// Check checks what s says, after the running check has ended, and returns the violations as the
// function Check does. A check of single convos does not wait. Error: ErrSince.
func (c *Checker) Check(ctx context.Context, s Scope) (violations []string, err error) {
	var v verification
	if len(s.Convos) > 0 {
		err = v.run(ctx, c.db, s)
		return v.list(), err
	}
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	v.begins = func(p Progress) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress = p
	}
	err = v.run(ctx, c.db, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = Progress{}
	begun := v.progress.Since
	c.results = slices.Insert(c.results, 0,
		Result{At: begun, Took: time.Since(begun), Violations: v.list(), Failed: err != nil})
	c.results = c.results[:min(len(c.results), remembered)]
	return v.list(), err
}

// State returns the progress of the running check.
func (c *Checker) State() Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.progress
}

// Results returns the results of the last checks, the newest first.
func (c *Checker) Results() []Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.results)
}
