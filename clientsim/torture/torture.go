// Package torture plays clients against several servers while the connections to PostgreSQL, the
// servers and PostgreSQL itself fail all the time. Then it heals everything, and judges whether
// each acknowledged write is there once. A failure is shrunk to fewer faults.
package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Config says what to run.
type Config struct {
	Seed   uint64
	For    time.Duration // how long clients write
	Nodes  int
	Binary string // the mlsd to start; "": one is found or built
	// PgBouncer is the program of a PgBouncer, through which the last node reaches PostgreSQL. "":
	// all nodes reach it without.
	PgBouncer string
	// Clocks builds a server whose clock can be wrong, if one is to be built.
	Clocks bool
	// Shrink bounds the time of shrinking after a failure. 0: it is not shrunk.
	Shrink   time.Duration
	Progress func(string) // gets lines about what is going on
}

// Run plays one run, and shrinks it if it fails. It returns an error if the run could not be
// played. Broken promises are in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	home, err := os.MkdirTemp("", "mlsd-torture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	if c.Clocks && c.Binary == "" {
		c.Binary, err = testbed.BuildMovable(ctx, home)
	} else {
		c.Binary, err = testbed.FindServer(ctx, c.Binary, home)
	}
	if err != nil {
		return nil, err
	}
	report := c.newReport(c.For, NewPlan(c.Seed, c.For, c.Nodes))
	if err := c.play(ctx, report); err != nil {
		return report, err
	}
	if len(report.Violations) == 0 || c.Shrink == 0 {
		return report, nil
	}
	report.Shrunk, err = c.shrink(ctx, report)
	return report, err
}

func (c *Config) newReport(length time.Duration, plan []Step) *Report {
	return &Report{Seed: c.Seed, For: length, Plan: plan, Histories: map[string]int{}}
}

// internalError is the answer to what the server did not expect. It is no name of the lexicons,
// because every method can answer with it.
const internalError = "InternalServerError"

// torture runs the load and the plan, heals and judges.
func (c *Config) torture(ctx context.Context, l *load, i *injector, report *Report) error {
	if err := l.prepare(ctx, report.For); err != nil {
		return err
	}
	begun := time.Now()
	loading, cancel := context.WithTimeout(ctx, report.For)
	defer cancel()
	injected := make(chan error, 1)
	go func() {
		err := i.inject(ctx, loading, report.Plan)
		injected <- errors.Join(err, i.heal(ctx)) // requests that still run get their verdict
	}()
	stop := c.progress(loading, l, i)
	err := errors.Join(l.run(ctx, loading), <-injected)
	stop()
	report.Faults, report.Recoveries = i.fired(), l.cluster.Postgres.Recoveries()
	for n, node := range l.cluster.Nodes {
		if exited := node.Exited(); exited != nil {
			l.w.Broken("node %d: %v", n+1, exited)
		}
	}
	l.w.Note("the load took %s, with the recovery from the last faults", time.Since(begun).Round(time.Millisecond))
	if err == nil {
		err = l.resolve(ctx)
	}
	l.count(report)
	if err != nil { // a request without a verdict, long after all faults, is a broken promise too
		l.w.Broken("the load ended early: %v", err)
		return err
	}
	healed := time.Now()
	if err := l.judge(ctx, report); err != nil {
		return err
	}
	report.Events = l.w.Stats.Delivered.Load()
	l.w.Note("the judgement took %s", time.Since(healed).Round(time.Millisecond))
	return nil
}

// count fills the report in with what the load did.
func (l *load) count(report *Report) {
	report.Operations, report.Attempts, report.Tripled = l.operations.Load(), l.calls.attempts.Load(), l.calls.tripled.Load()
	report.Verified = l.verified.Load()
	report.Unknown, report.Refused, report.Failures = l.calls.unknown.Load(), l.calls.refused.Load(), l.calls.failures
	if n := report.Failures[internalError]; n > 0 {
		l.w.Broken("%d answers were %s: a failure of the database is ServiceUnavailable", n, internalError)
		for i, node := range l.cluster.Nodes {
			l.w.Note("node %d: %s", i+1, node.FailedRequests())
		}
	}
}

// progress says every second how far the load is.
func (c *Config) progress(loading context.Context, l *load, i *injector) (stop func()) {
	ended := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		for loading.Err() == nil {
			xrpc.Sleep(loading, time.Second)
			faults := (&Report{Faults: i.fired()}).faults()
			c.Progress(fmt.Sprintf("%s: %d operations, %d faults", time.Since(begun).Round(time.Second), l.operations.Load(), faults))
		}
	}()
	return func() { <-ended }
}
