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

// Checker checks the whole database, one check at a time, because a check can take minutes and needs
// a connection. It says how far the check is, and remembers the last results in memory.
type Checker struct {
	db      *pgxpool.Pool
	running chan struct{} // full during a check

	mu       sync.Mutex // guards the rest
	progress Progress
	results  []Result // the newest first
}

// Progress is how far a check is. Of is 0 if none runs.
type Progress struct {
	Promise string    // that is being verified
	Step    int       // its number, from 1
	Of      int       // how many there are
	Since   time.Time // when the check began
}

// String says how far the check is.
func (p Progress) String() string {
	if p.Of == 0 {
		return "no check runs"
	}
	return fmt.Sprintf("step %d of %d: %s", p.Step, p.Of, p.Promise)
}

// Result is how a check ended.
type Result struct {
	At         time.Time // when it began
	Took       time.Duration
	Violations []string
	Failed     bool // the check could not be made
}

// NewChecker returns a checker.
func NewChecker(db *pgxpool.Pool) *Checker {
	return &Checker{db: db, running: make(chan struct{}, 1)}
}

// Check is the function Check. It waits until no other check runs.
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

// State returns how far the running check is.
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
