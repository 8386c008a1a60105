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

// partTime is how long a part of a check takes, and at most a page more.
const partTime = 10 * time.Second

// Checker makes checks that go through the whole database or much of it. It runs one at a time,
// because a check can take hours and needs a connection. It reports the progress of a check, and
// remembers the last results in memory.
type Checker struct {
	db      *pgxpool.Pool
	running chan struct{} // holds a value during a check

	mu       sync.Mutex // guards the fields below
	progress Progress
	results  []Result // the newest first
}

// Progress is the progress of a check. Of is 0 if no check is running.
type Progress struct {
	Stage   string    // what is being verified
	Step    int       // number of the stage, from 1
	Of      int       // number of all stages
	Checked string    // how much was verified so far
	Since   time.Time // when the check, or its present part, began
}

// String describes the progress in words.
func (p Progress) String() string {
	if p.Of == 0 {
		return "no check runs"
	}
	return fmt.Sprintf("step %d of %d, %s: %s", p.Step, p.Of, p.Stage, p.Checked)
}

// Checked says how much was verified before the cursor.
func (c Cursor) Checked() string {
	convos := fmt.Sprintf("%d convos", c.Convos)
	if c.About > c.Convos {
		convos = fmt.Sprintf("%d of about %d convos", c.Convos, c.About)
	}
	return fmt.Sprintf("%s, %d entries, %d people, %d rows of events", convos, c.Entries, c.People, c.Events)
}

// Result is the result of a check.
type Result struct {
	At         time.Time // when the check began
	Took       time.Duration
	What       string // what was checked
	Violations []string
	Failed     bool // the check could not be completed
}

// NewChecker returns a checker.
func NewChecker(db *pgxpool.Pool) *Checker {
	return &Checker{db: db, running: make(chan struct{}, 1)}
}

// Check verifies everything from a cursor on, after the running check has ended.
func (c *Checker) Check(ctx context.Context, at Cursor) (violations []string, err error) {
	what := "everything"
	if !at.Since.IsZero() {
		what = "what has changed since " + at.Since.UTC().Format(time.RFC3339)
	}
	return c.remember(ctx, what, func() ([]string, error) {
		found, _, err := c.pages(ctx, at, func() bool { return false })
		return found, err
	})
}

// Part verifies the next part of a check, which takes some seconds, after the running check has
// ended. It returns the cursor behind that part. A part is no result.
func (c *Checker) Part(ctx context.Context, at Cursor) (violations []string, next Cursor, err error) {
	if err := c.acquire(ctx); err != nil {
		return nil, at, err
	}
	defer c.release()
	end := time.Now().Add(partTime)
	return c.pages(ctx, at, func() bool { return time.Now().After(end) })
}

// Sample calls CheckSample, after the running check has ended.
func (c *Checker) Sample(ctx context.Context, n int) (violations []string, err error) {
	return c.remember(ctx, fmt.Sprintf("a sample of %d convos", n), func() ([]string, error) {
		c.report(Progress{Stage: "a sample", Step: 1, Of: 1, Checked: "some minutes at most", Since: time.Now()})
		return CheckSample(ctx, c.db, n)
	})
}

// acquire waits until no check is running.
func (c *Checker) acquire(ctx context.Context) error {
	select {
	case c.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Checker) release() {
	c.report(Progress{})
	<-c.running
}

func (c *Checker) report(p Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = p
}

// remember makes a check, and keeps its result.
func (c *Checker) remember(ctx context.Context, what string, check func() ([]string, error)) ([]string, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	begun := time.Now()
	violations, err := check()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results = slices.Insert(c.results, 0,
		Result{At: begun, Took: time.Since(begun), What: what, Violations: violations, Failed: err != nil})
	c.results = c.results[:min(len(c.results), remembered)]
	return violations, err
}

// pages verifies page after page, at least one, until the check or its time is over.
func (c *Checker) pages(ctx context.Context, at Cursor, over func() bool) (_ []string, next Cursor, err error) {
	v := verification{sizes: usualSizes}
	begun := time.Now()
	for first := true; !at.Done() && (first || !over()); first = false {
		c.report(Progress{Stage: stages[at.Stage].name, Step: at.Stage + 1, Of: len(stages), Checked: at.Checked(),
			Since: begun})
		if at, err = v.page(ctx, c.db, at); err != nil {
			return nil, at, err
		}
	}
	return v.violations(), at, nil
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
