package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/standby"
	"mlsd/internal/tracing"
)

// drainTimeout bounds the requests that are under way when the node stops.
const drainTimeout = 15 * time.Second

// pools are the node's connections to its database. See packages pgpool and standby.
type pools struct {
	requests, reserved, maintenance *pgxpool.Pool
	reads                           *standby.Reads
}

// Start starts a node on a database that has the schema of this version. It serves the requests
// that ServeHTTP gets from the listener at addr. tracer can be nil.
func Start(ctx context.Context, cfg Config, databaseURL string, addr net.Addr, tracer *tracing.Tracer,
	log *slog.Logger) (*Node, error) {
	n := &Node{tracer: tracer, log: log}
	err := n.openPools(ctx, cfg, databaseURL)
	if err == nil {
		err = n.assemble(cfg, addr)
	}
	if err == nil {
		err = n.load(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close(ctx))
	}
	n.inBackground(ctx, n.workers()...)
	// Only this worker ends before requests are drained.
	n.stopPresence = n.inBackground(ctx, func(ctx context.Context) { n.presence.Run(ctx, n.rounds, events.SyncInterval) })
	n.ready.Store(true)
	return n, nil
}

func (n *Node) openPools(ctx context.Context, cfg Config, url string) error {
	primary, err := pgpool.NewPrimary(url, n.log)
	if err != nil {
		return err
	}
	n.inBackground(ctx, primary.Run)
	options := []pgpool.Option{primary.Follow}
	if n.tracer != nil {
		options = append(options, pgpool.Traced)
	}
	for _, p := range []struct {
		pool **pgxpool.Pool
		open func(context.Context, string, ...pgpool.Option) (*pgxpool.Pool, error)
	}{
		{&n.db.requests, pgpool.Open},
		{&n.db.reserved, pgpool.OpenReserved},
		{&n.db.maintenance, pgpool.OpenMaintenance},
	} {
		pool, err := p.open(ctx, url, options...)
		if err != nil {
			return err
		}
		*p.pool = pool
		n.onClose(func(context.Context) error { pool.Close(); return nil })
	}
	n.db.reads, err = n.readsFrom(primary, url, cfg.ReadDatabaseURL)
	return err
}

// readsFrom returns the Reads that choose the server of each read. They use the standby, if one is
// named, once the standby runs.
func (n *Node) readsFrom(primary *pgpool.Primary, primaryURL, standbyURL string) (*standby.Reads, error) {
	reads := standby.Config{DB: n.db.requests, Log: n.log}
	if standbyURL != "" {
		asked, err := pgpool.Config(primaryURL)
		if err != nil {
			return nil, err
		}
		primary.Follow(asked)
		reads.Primary = asked.ConnConfig
		if reads.Standby, err = pgpool.Config(standbyURL); err != nil {
			return nil, err
		}
		if n.tracer != nil {
			pgpool.Traced(reads.Standby)
		}
	}
	return standby.New(reads), nil
}

// load reads what the node must know before the first request. The gate comes first, because
// without it nobody could be refused. Then come the keys and ends of sessions, the keys that sign
// heads of logs, the key with which the log hashes callers, and the schema.
func (n *Node) load(ctx context.Context) error {
	for _, load := range []func(context.Context) error{n.gate.Load, n.sessions.Load, n.heads.Load, n.serviceKey.RunOnce,
		n.requests.Load, n.schema.RunOnce} {
		if err := load(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP implements http.Handler with the public methods.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) { n.api.ServeHTTP(w, r) }

// Shutdown takes the node out of service. It ends the streams, calls drain, which waits for the
// requests under way, and then finishes the batches of messages, cursors and confirmations.
func (n *Node) Shutdown(ctx context.Context, drain func(context.Context) error) error {
	n.ready.Store(false)
	n.log.Info("shutting down")
	n.stopPresence() // the devices connect to another node next, and need no push
	n.hub.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	streams := make(chan error, 1)
	go func() { streams <- n.api.Drain(ctx) }() // drain waits for event streams, but not for WebSockets
	err := drain(ctx)
	for _, step := range []struct {
		failure string
		finish  func(context.Context) error
	}{
		{"messages were left unwritten", n.messages.Close},
		{"cursors were left unmoved", n.cursors.Close},
		{"Welcomes were left unconfirmed", n.deliveries.Close},
		{"streams were cut off", func(context.Context) error { return <-streams }},
	} {
		if err := step.finish(ctx); err != nil {
			n.log.Warn(step.failure, "error", err)
		}
	}
	return err
}

// closers undo what has started, in the order in which it started.
type closers []func(context.Context) error

// onClose makes Close call undo, before the functions given to onClose earlier.
func (c *closers) onClose(undo func(context.Context) error) { *c = append(*c, undo) }

// Close calls the functions given to onClose, the newest first.
func (c *closers) Close(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx)
	for _, undo := range slices.Backward(*c) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

// inBackground starts functions that end with their context. Their context does not end with ctx,
// but with stop, which also waits for the functions. Close calls stop.
func (c *closers) inBackground(ctx context.Context, run ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, f := range run {
		running.Go(func() { f(ctx) })
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	c.onClose(func(context.Context) error { stop(); return nil })
	return stop
}
