package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Cluster is several servers on one PostgreSQL. Each of the processes can be killed or restarted
// alone.
type Cluster struct {
	Postgres *Postmaster // nil if the database is a Pair
	Nodes    []*Proc
	Clients  []*xrpc.Client // one for each node, in the order of the nodes
	Clocks   []*Clock       // one for each node; empty if all clocks are right
}

// ClusterOptions say how a cluster differs from the usual one.
type ClusterOptions struct {
	Nodes    int
	Settings map[string]string // settings of the nodes
	// Through returns the URL by which the next node of a cluster reaches the database. nil means the
	// database's own URL.
	Through func(f *Cluster, databaseURL string) (string, error)
	// Clocks makes the clocks of the nodes movable. BuildMovable must have built the server.
	Clocks bool
	// Transport is the clients' transport. nil means a transport that keeps its connections open.
	Transport http.RoundTripper
}

// WithCluster runs play on a cluster of servers. The world's own server stops, and the cluster uses
// its database.
func (w *World) WithCluster(ctx context.Context, o ClusterOptions, play func(*Cluster)) {
	w.CloseIdle()
	pg := Must(w.Server.Detach(ctx))
	err := Attempt(func() {
		Check(pg.Start(ctx))
		w.withNodes(ctx, pg.URL(), o, &Cluster{Postgres: pg}, play)
	})
	Check(errors.Join(err, pg.Stop(), w.Server.Start(context.WithoutCancel(ctx), nil)))
}

// withNodes starts the servers of a cluster, on the database at url, and runs play on it.
func (w *World) withNodes(ctx context.Context, url string, o ClusterOptions, f *Cluster, play func(*Cluster)) {
	if o.Transport == nil {
		o.Transport = FastTransport()
	}
	err := Attempt(func() {
		for range o.Nodes {
			w.addNode(ctx, url, f, o)
		}
		play(f)
	})
	if err != nil {
		for i, node := range f.Nodes {
			w.Note("node %d: %s", i+1, node.log)
		}
	}
	for _, c := range f.Clients {
		c.HTTP.CloseIdleConnections()
	}
	for _, node := range f.Nodes {
		err = errors.Join(err, node.Stop())
	}
	for _, clock := range f.Clocks {
		err = errors.Join(err, clock.file.Close())
	}
	Check(err)
}

// ClusterOf returns the nodes of an environment as a cluster. Its clients use a transport.
func (w *World) ClusterOf(e *Environment, transport http.RoundTripper) *Cluster {
	f := &Cluster{Postgres: e.Postgres, Nodes: e.Nodes}
	for _, node := range e.Nodes {
		f.Clients = append(f.Clients, xrpc.NewClient(node.URL(), w.Net.Audience, transport, w.Stats))
	}
	return f
}

// addNode starts another node of the cluster, on the database at url.
func (w *World) addNode(ctx context.Context, url string, f *Cluster, o ClusterOptions) {
	if o.Through != nil {
		url = Must(o.Through(f, url))
	}
	node := w.Server.onDatabase(url, fmt.Sprintf("-node-%d", len(f.Nodes)+1))
	maps.Copy(node.env, o.Settings)
	var wrong xrpc.Clock
	if o.Clocks {
		clock := Must(newClock(node.data + ".clock"))
		f.Clocks = append(f.Clocks, clock)
		node.env[clockVariable], wrong = clock.file.Name(), clock
	}
	Check(node.Start(ctx, nil))
	f.Nodes = append(f.Nodes, node)
	client := xrpc.NewClient(node.URL(), w.Net.Audience, o.Transport, w.Stats)
	client.Clock = wrong
	f.Clients = append(f.Clients, client)
}

// Leader waits until exactly one node says that it sequences events.
func (f *Cluster) Leader(ctx context.Context) (leader *Proc, err error) {
	err = xrpc.UntilDone(ctx, stopLimit, func() error {
		leader = nil
		for _, node := range f.Nodes {
			switch leads, err := node.isLeader(ctx); {
			case err != nil:
				return err
			case leads && leader != nil:
				return errors.New("two nodes say that they lead") // the old leader does not know yet that it was replaced
			case leads:
				leader = node
			}
		}
		if leader == nil {
			return errors.New("no node says that it leads")
		}
		return nil
	})
	return leader, err
}

// CheckNodes asks each node's own checker about everything that is stored. No node may have exited
// by itself.
func (w *World) CheckNodes(ctx context.Context, f *Cluster) {
	w.CheckRunning(f)
	for i, node := range f.Nodes {
		for _, text := range Must(node.CheckDatabase(ctx)) {
			w.Broken("/check of node %d: %s", i+1, text)
		}
	}
}

// CheckRunning reports the nodes that have exited by themselves.
func (w *World) CheckRunning(f *Cluster) {
	for i, node := range f.Nodes {
		if err := node.Exited(); err != nil {
			w.Broken("node %d: %v", i+1, err)
		}
	}
}

// AwaitAndJudge waits until all subscribers have seen everything, at most for limit. Then it
// reports the violations that they saw.
func (w *World) AwaitAndJudge(ctx context.Context, c *client.Subscribers, want *history.History,
	limit time.Duration) error {
	close(c.StopPausing)
	err := xrpc.Until(ctx, limit, func() (bool, error) {
		if err := c.Err(); err != nil {
			return false, err
		}
		return c.Missing(want) == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		w.Broken("%d events did not come within %s", c.Missing(want), limit)
		err = nil
	}
	xrpc.Sleep(ctx, client.QuietTime) // to see events that come once too often
	err = errors.Join(err, c.Stop())
	for _, s := range c.All {
		w.Report(s.Observer.Judge(want)...)
		events, _ := s.Observer.Count()
		w.Stats.Delivered.Add(events)
	}
	return err
}

// P256Account makes a registered account with a P-256 key, whose tokens are cheap to sign and to
// verify.
func (w *World) P256Account() (_ *xrpc.Account, err error) {
	defer Catch(&err)
	const p256 = 1
	a := Must(xrpc.NewAccount(p256))
	return a, w.register(a)
}

// DIDsOf returns the DIDs of accounts.
func DIDsOf(accounts []*xrpc.Account) []syntax.DID {
	out := make([]syntax.DID, len(accounts))
	for i, a := range accounts {
		out[i] = a.DID
	}
	return out
}

// Uploads is what the database says of the attachments of a cluster.
type Uploads struct {
	Twice     int // contents that a convo has more than once
	TakenOver int // attachments that a second server has completed
}

// Uploads reads the figures of all attachments.
func (f *Cluster) Uploads(ctx context.Context) (u Uploads, err error) {
	err = Scan(ctx, f.Postgres.URL(), `
		SELECT count(*) FILTER (WHERE fence > 1),
			(SELECT count(*) FROM (
				SELECT FROM attachments WHERE state = 'complete' GROUP BY convo_id, sha256 HAVING count(*) > 1) twice)
		FROM attachments`,
		nil, &u.TakenOver, &u.Twice)
	return u, err
}
