package torture

import (
	"context"
	"errors"
	"slices"
	"time"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/torture/pgwire"
	"mlsd/clientsim/traffic"
)

// lanes is how many operations run at once.
const lanes = 24

// options returns the options of the clients. All clients reconnect now and then, and some read
// server-sent events.
func options(length time.Duration) traffic.Options {
	return traffic.Options{
		Roles:   2,
		Writers: 8, Listeners: 9, Stocks: 4, Consenters: 3, Convos: 24, Steady: 8, Rough: true, Judged: true,
		Listen: func(i int, s *client.Subscriber) {
			s.ConnectionLife = length / 3
			s.ServerSent = i%3 == 2
		},
	}
}

// equipment is what faults need besides the cluster.
type equipment struct {
	*testbed.Environment
	proxies []*pgwire.Proxy // one for each node, in the order of the nodes
	disk    *testbed.SmallDisk
	bouncer *testbed.PgBouncer
	skipped map[Kind]string // why a kind of fault cannot happen
}

// prepare makes the equipment that does not need the cluster.
func (c *Config) prepare(ctx context.Context) (_ *equipment, err error) {
	e := &equipment{skipped: map[Kind]string{}}
	if !c.Clocks {
		e.skipped[MoveClock] = "no server is built with --clocks"
	}
	if c.PgBouncer == "" {
		e.skipped[KillPgBouncer] = "--pgbouncer names none"
	}
	if e.Environment, err = testbed.NewEnvironment(ctx, "127.0.0.1:0", testbed.Binary{Path: c.Binary}); err != nil {
		return nil, err
	}
	if e.disk, err = testbed.NewSmallDisk(e.Home); err != nil {
		e.skipped[FillDisk] = err.Error()
	}
	return e, nil
}

// close ends what prepare and connect made.
func (e *equipment) close(ctx context.Context) (err error) {
	for _, p := range e.proxies {
		err = errors.Join(err, p.Close())
	}
	if e.bouncer != nil {
		err = errors.Join(err, e.bouncer.Kill())
	}
	err = errors.Join(err, e.Stop())
	if e.disk != nil {
		err = errors.Join(err, e.disk.Close())
	}
	return errors.Join(err, e.Close(ctx))
}

// connect returns the URL by which the next node of the cluster reaches the database: through a
// proxy. The last node's proxy reaches the database through PgBouncer.
func (c *Config) connect(ctx context.Context, e *equipment, f *testbed.Cluster, databaseURL string) (_ string,
	err error) {
	defer Catch(&err)
	if c.PgBouncer != "" && len(f.Nodes) == c.Nodes-1 {
		e.bouncer = Must(testbed.StartPgBouncer(ctx, c.PgBouncer, "session", databaseURL, e.Home))
		databaseURL = e.bouncer.URL()
	}
	p := Must(pgwire.New(databaseURL))
	e.proxies = append(e.proxies, p)
	return p.Through(databaseURL)
}

// play plays a plan, on a PostgreSQL and servers of its own. It leaves out the faults that cannot
// happen on this machine.
func (c *Config) play(ctx context.Context, report *Report) (err error) {
	defer Catch(&err)
	e := Must(c.prepare(ctx))
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	report.Plan = slices.DeleteFunc(report.Plan, func(s Step) bool { return e.skipped[s.Kind] != "" })
	report.Skipped = e.skipped
	settings := Must(testbed.Unlimited(ctx, c.Binary))
	server := e.Server("data")
	Check(server.Start(ctx, settings))
	transport := testbed.Unrepeated{Transport: testbed.FastTransport()}
	defer transport.CloseIdleConnections()
	w := e.World(server, transport, testbed.Options{Seed: c.Seed, For: report.For}, 0x70, c.Progress)
	o := testbed.ClusterOptions{
		Nodes: c.Nodes, Settings: settings, Transport: transport, Clocks: c.Clocks,
		Through: func(f *testbed.Cluster, databaseURL string) (string, error) { return c.connect(ctx, e, f, databaseURL) },
	}
	err = Attempt(func() {
		w.WithCluster(ctx, o, func(f *testbed.Cluster) {
			defer transport.CloseIdleConnections()
			t := traffic.New(ctx, w, f, options(report.For))
			err := c.torture(ctx, w, t, newInjector(w, f, settings, e), report)
			Check(errors.Join(err, t.Subscribers.Stop()))
		})
	})
	report.Violations, report.Notes = w.Found(), w.Notes()
	if len(report.Violations) > 0 && ctx.Err() == nil {
		err = nil // a broken promise can keep the run from its end
	}
	return err
}
