// Package torture plays clients against several servers while the connections to PostgreSQL, the
// servers and PostgreSQL itself fail all the time. Then it heals everything, and judges whether
// each acknowledged write is there once.
package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
)

// Config says what to run.
type Config struct {
	Seed   uint64
	For    time.Duration // how long clients write
	Nodes  int
	Binary string // the mlsd to start; "" means that one is found or built
	// PgBouncer is the path of a PgBouncer program. The last node reaches PostgreSQL through it. If
	// the path is "", no node has a PgBouncer.
	PgBouncer string
	// Clocks lets the plan make the clocks of nodes wrong, if the mlsd is built for this run.
	Clocks   bool
	Progress func(string) // gets lines that say what is happening
}

// Run plays one run. It returns an error if the run could not be played. Broken promises are in the
// report.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	defer Catch(&err)
	home := Must(os.MkdirTemp("", "mlsd-torture-"))
	defer os.RemoveAll(home)
	if c.Clocks = c.Clocks && c.Binary == ""; c.Clocks {
		c.Binary = Must(testbed.BuildMovable(ctx, home))
	} else {
		c.Binary = Must(testbed.FindServer(ctx, c.Binary, home))
	}
	report := &Report{Seed: c.Seed, For: c.For, Plan: NewPlan(c.Seed, c.For, c.Nodes)}
	return report, c.play(ctx, report)
}

// internalError is the error name of an unexpected failure in the server. The lexicons do not list
// this name, because every method can answer with it.
const internalError = "InternalServerError"

// torture runs the load and the plan, heals and judges.
func (c *Config) torture(ctx context.Context, w *testbed.World, t *traffic.Traffic, i *injector,
	report *Report) (err error) {
	defer Catch(&err)
	Check(t.Prepare(ctx))
	begun := time.Now()
	loading, cancel := context.WithTimeout(ctx, report.For)
	defer cancel()
	injected := make(chan error, 1)
	go func() {
		err := i.inject(ctx, loading, report.Plan)
		injected <- errors.Join(err, i.heal(ctx)) // after the healing, requests that still run get an answer
	}()
	stop := c.progress(loading, t, i)
	err = errors.Join(t.DoAll(ctx, loading, lanes), <-injected)
	stop()
	report.Faults, report.Recoveries = i.fired(), i.cluster.Postgres.Recoveries()
	w.CheckRunning(i.cluster)
	w.Note("the load took %s, with the recovery from the last faults", time.Since(begun).Round(time.Millisecond))
	if err == nil {
		err = t.Resolve(ctx)
	}
	report.Counts = t.Counts()
	c.internalErrors(w, i.cluster, report)
	if err != nil { // a request without an answer, long after all faults, is a broken promise
		w.Broken("the load ended early: %v", err)
		return err
	}
	healed := time.Now()
	report.Judgement = Must(t.Judge(ctx))
	report.Events = w.Stats.Delivered.Load()
	w.Note("the judgement took %s", time.Since(healed).Round(time.Millisecond))
	return nil
}

// internalErrors reports how many answers were internalError.
func (c *Config) internalErrors(w *testbed.World, f *testbed.Cluster, report *Report) {
	n := report.Failures[internalError]
	if n == 0 {
		return
	}
	w.Broken("%d answers were %s: a failure of the database is ServiceUnavailable", n, internalError)
	for i, node := range f.Nodes {
		w.Note("node %d: %s", i+1, node.FailedRequests())
	}
}

// progress says every second how far the load is.
func (c *Config) progress(loading context.Context, t *traffic.Traffic, i *injector) (stop func()) {
	ended := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		for loading.Err() == nil {
			xrpc.Sleep(loading, time.Second)
			faults := (&Report{Faults: i.fired()}).faults()
			c.Progress(fmt.Sprintf("%s: %d operations, %d faults", time.Since(begun).Round(time.Second), t.Operations(), faults))
		}
	}()
	return func() { <-ended }
}
