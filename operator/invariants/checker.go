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

// Checker checks the whole database. It runs one check at a time, because a check can take minutes
// and needs a connection. It reports the progress of a check, and remembers the last results in
// memory.
type Checker struct {
	db      *pgxpool.Pool
	running chan struct{} // holds a value during a check

	mu       sync.Mutex // guards the fields below
	progress Progress
	results  []Result // the newest first
}

// Progress is the progress of a check. Of is 0 if no check is running.
type Progress struct {
	Promise string    // the promise that is being verified
	Step    int       // number of the promise, from 1
	Of      int       // number of all promises
	Since   time.Time // when the check began
}

// String describes the progress in words.
func (p Progress) String() string {
	if p.Of == 0 {
		return "no check runs"
	}
	return fmt.Sprintf("step %d of %d: %s", p.Step, p.Of, p.Promise)
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

// Check calls the function Check, after the running check has ended.
func (c *Checker) Check(ctx context.Context) (violations []string, err error) {
	select {
	case c.running <- struct{}{}:
		defer func() { <-c.running }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	begun := time.Now()
	violations, err = checkAll(ctx, c.db, func(promise string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress = Progress{Promise: promise, Step: c.progress.Step + 1, Of: steps, Since: begun}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = Progress{}
	c.results = slices.Insert(c.results, 0,
		Result{At: begun, Took: time.Since(begun), Violations: violations, Failed: err != nil})
	c.results = c.results[:min(len(c.results), remembered)]
	return violations, err
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
