// Package torture plays clients against several servers while the connections to PostgreSQL, the
// servers and PostgreSQL itself fail all the time. Then it heals everything, and judges whether
// each acknowledged write is there once. A failure is shrunk to fewer faults.
package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/torture/pgwire"
	"mlsd/clientsim/xrpc"
)

// Config says what to run.
type Config struct {
	Seed   uint64
	For    time.Duration // how long clients write
	Nodes  int
	Binary string // the mlsd to start; "": one is found or built
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
	if c.Binary, err = testbed.FindServer(ctx, c.Binary, home); err != nil {
		return nil, err
	}
	report, err := c.play(ctx, c.For, NewPlan(c.Seed, c.For, c.Nodes))
	if err != nil || len(report.Violations) == 0 || c.Shrink == 0 {
		return report, err
	}
	report.Shrunk, err = c.shrink(ctx, report)
	return report, err
}

// play plays a plan, on a PostgreSQL and servers of its own.
func (c *Config) play(ctx context.Context, length time.Duration, plan []Step) (_ *Report, err error) {
	home, err := os.MkdirTemp("", "mlsd-torture-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	// A server started by root runs its database as another user, who needs access to the data
	// directory.
	if err := os.Chmod(home, 0o755); err != nil {
		return nil, err
	}
	dir, err := testbed.NewDirectory("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close(context.WithoutCancel(ctx))) }()
	settings, err := testbed.Unlimited(ctx, c.Binary)
	if err != nil {
		return nil, err
	}
	server := testbed.NewProc(c.Binary, filepath.Join(home, "data"), dir.URL(), xrpc.DefaultServiceDID)
	if err := server.Start(ctx, settings); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	transport := testbed.FastTransport()
	defer transport.CloseIdleConnections()
	w := testbed.NewWorld(testbed.Target{
		Base: server.URL(), Audience: xrpc.DefaultServiceDID, Transport: transport, Server: server, Dir: dir,
	}, testbed.Options{Seed: c.Seed, For: length}, 0x70, c.Progress)
	report := &Report{Seed: c.Seed, For: length, Plan: plan, Histories: map[string]int{}}
	var proxies []*pgwire.Proxy
	defer func() {
		for _, p := range proxies {
			err = errors.Join(err, p.Close())
		}
	}()
	err = w.WithClusterOf(ctx, testbed.ClusterOptions{
		Nodes: c.Nodes, Settings: settings, Transport: transport,
		Through: func(databaseURL string) (string, error) {
			p, err := pgwire.New(databaseURL)
			if err != nil {
				return "", err
			}
			proxies = append(proxies, p)
			return p.Through(databaseURL)
		},
	}, func(f *testbed.Cluster) error {
		defer transport.CloseIdleConnections()
		l := newLoad(ctx, w, f)
		err := c.torture(ctx, l, newInjector(f, settings, proxies, c.Seed), report)
		return errors.Join(err, l.subscribers.Stop())
	})
	report.Violations, report.Notes = w.Found(), w.Notes()
	if len(report.Violations) > 0 && ctx.Err() == nil {
		err = nil // what is broken can keep the run from its end
	}
	return report, err
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
		i.heal() // requests that still run get their verdict
		injected <- err
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
	report.Unknown, report.Refused, report.Failures = l.calls.unknown.Load(), l.calls.refused.Load(), l.calls.failures
	if n := report.Failures[internalError]; n > 0 {
		l.w.Broken("%d answers were %s: a failure of the database is ServiceUnavailable", n, internalError)
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
