package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/outage"
	"mlsd/internal/pgpool"
	"mlsd/internal/standby"
	"mlsd/internal/tracing"
	"mlsd/migrations"
	"mlsd/operator"
	"mlsd/operator/console"
)

const (
	drainTimeout = 15 * time.Second // for requests under way when the server stops
	stopTimeout  = 30 * time.Second // for the private PostgreSQL

	tracesTimeout = 5 * time.Second // for the last spans
)

// lifecycle is one run of the server, from its start to its end.
type lifecycle struct {
	cfg     Config
	log     *slog.Logger
	outages *outage.Log // what log is of
	stdout  io.Writer

	tracer                    *tracing.Tracer // nil: none
	databaseURL               string
	databaseEnded             <-chan struct{} // closed when the private PostgreSQL ends; nil if the operator runs the database
	db                        pools
	publicListen, adminListen net.Listener
	access                    *operator.Access
	node                      *node
	console                   *console.Console
	stopPresence              func()
	public, admin             door
	failed                    chan error // from the HTTP servers

	closers []func(context.Context) error // undo what has started, in the order in which it started
}

// door is what lets requests in: an HTTP server. Shutdown waits for those that are under way, Close
// cuts them off.
type door interface {
	Shutdown(context.Context) error
	Close() error
}

// pools are the server's connections to its database. See packages pgpool and standby.
type pools struct {
	requests, reserved, maintenance *pgxpool.Pool
	reads                           *standby.Reads
}

// serve runs the server until ctx ends and then shuts it down. If ctx ends during the start, that
// is no error.
func serve(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	outages := outage.New(logger(cfg, stderr))
	l := &lifecycle{cfg: cfg, log: outages.Logger, outages: outages, stdout: stdout, failed: make(chan error, 2)}
	defer func() { err = errors.Join(err, l.close(ctx)) }()
	for _, start := range []func(context.Context) error{
		l.prepare,
		l.startTraces,
		l.startDatabase,
		l.migrate,
		l.openPools,
		l.checkStandby,
		l.watchDatabase,
		l.listen,
		l.assemble,
		l.loadAccounts,
		l.loadSessions,
		l.loadLogKeys,
		l.loadHashKey,
		l.checkSchema,
		l.startWorkers,
		l.startPresence,
		l.startConsole,
		l.startHTTP,
		l.announce,
	} {
		if err := start(ctx); err != nil {
			return unlessInterrupted(ctx, err, l.log)
		}
	}
	err = l.wait(ctx)
	return errors.Join(err, l.shutDown(ctx))
}

// unlessInterrupted returns err, or nil if ctx has ended: then a step of the start was interrupted.
// The error of the step does not always say so (initdb's does not).
func unlessInterrupted(ctx context.Context, err error, log *slog.Logger) error {
	if ctx.Err() == nil {
		return err
	}
	log.Warn("stopped while starting", "error", err)
	return nil
}

// onClose makes the server call undo when it closes, before the functions given to onClose earlier.
func (l *lifecycle) onClose(undo func(context.Context) error) { l.closers = append(l.closers, undo) }

// close calls the functions given to onClose, the newest first.
func (l *lifecycle) close(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx)
	for _, undo := range slices.Backward(l.closers) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

func (l *lifecycle) prepare(context.Context) (err error) {
	if l.access, err = l.cfg.check(l.log); err != nil {
		return err
	}
	if err := l.cfg.checkPorts(); err != nil {
		return err
	}
	tuneMemory(l.log)
	if l.cfg.KeptUnasked {
		l.log.Warn("messages are kept for ever; set MLSD_MESSAGE_RETENTION (a public service: 2160h), or to 0 if that is meant")
	}
	return nil
}

// startTraces makes the tracer first, so that it closes last and sends the spans of the others.
func (l *lifecycle) startTraces(ctx context.Context) (err error) {
	l.tracer, err = tracing.New(ctx, tracing.Config{URL: l.cfg.TracesURL, Share: l.cfg.TracesSample, Version: version(), Log: l.log})
	if err != nil {
		return fmt.Errorf("MLSD_TRACES_URL: %w", err)
	}
	l.onClose(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tracesTimeout)
		defer cancel()
		if err := l.tracer.Close(ctx); err != nil {
			l.log.Warn("spans were left unsent", "error", err)
		}
		return nil
	})
	return nil
}

func (l *lifecycle) startDatabase(ctx context.Context) error {
	url, own, err := database(ctx, l.cfg, l.log)
	if err != nil {
		return err
	}
	l.databaseURL = url
	if own != nil {
		l.databaseEnded = own.Done()
		l.onClose(func(ctx context.Context) error { return stopDatabase(ctx, own) })
	}
	return nil
}

func (l *lifecycle) migrate(ctx context.Context) error {
	return migrations.Up(ctx, l.databaseURL, migrations.Log(l.log))
}

func (l *lifecycle) openPools(ctx context.Context) error {
	primary, err := pgpool.NewPrimary(l.databaseURL, l.log)
	if err != nil {
		return err
	}
	stop := inBackground(ctx, primary.Run)
	l.onClose(func(context.Context) error { stop(); return nil })
	options := []pgpool.Option{primary.Follow}
	if l.tracer != nil {
		options = append(options, pgpool.Traced)
	}
	for _, p := range []struct {
		pool **pgxpool.Pool
		open func(context.Context, string, ...pgpool.Option) (*pgxpool.Pool, error)
	}{
		{&l.db.requests, pgpool.Open},
		{&l.db.reserved, pgpool.OpenReserved},
		{&l.db.maintenance, pgpool.OpenMaintenance},
	} {
		pool, err := p.open(ctx, l.databaseURL, options...)
		if err != nil {
			return err
		}
		*p.pool = pool
		l.onClose(func(context.Context) error { pool.Close(); return nil })
	}
	l.db.reads, err = l.readsFrom(primary)
	return err
}

// readsFrom returns what chooses the server of each read. It uses a standby once it runs.
func (l *lifecycle) readsFrom(primary *pgpool.Primary) (*standby.Reads, error) {
	reads := standby.Config{DB: l.db.requests, Log: l.log}
	if l.cfg.ReadDatabaseURL != "" {
		asked, err := pgpool.Config(l.databaseURL)
		if err != nil {
			return nil, err
		}
		primary.Follow(asked)
		reads.Primary = asked.ConnConfig
		if reads.Standby, err = pgpool.Config(l.cfg.ReadDatabaseURL); err != nil {
			return nil, err
		}
		if l.tracer != nil {
			pgpool.Traced(reads.Standby)
		}
	}
	return standby.New(reads), nil
}

// watchDatabase makes an outage of the database one line in the log.
func (l *lifecycle) watchDatabase(ctx context.Context) error {
	stop := inBackground(ctx, func(ctx context.Context) {
		l.outages.Run(ctx, func(ctx context.Context) error { return pgpool.Reach(ctx, l.databaseURL) })
	})
	l.onClose(func(context.Context) error { stop(); return nil })
	return nil
}

func (l *lifecycle) listen(context.Context) (err error) {
	if l.publicListen, err = listen(listenFlag, l.cfg.Listen); err != nil {
		return err
	}
	l.onClose(func(context.Context) error { closeQuietly(l.publicListen, l.log); return nil })
	if l.adminListen, err = listen(adminListenFlag, l.cfg.AdminListen); err != nil {
		return err
	}
	l.onClose(func(context.Context) error { closeQuietly(l.adminListen, l.log); return nil })
	return nil
}

func (l *lifecycle) assemble(context.Context) (err error) {
	l.node, err = assemble(l.cfg, l.db, l.tracer, l.publicListen.Addr(), l.log)
	return err
}

// loadAccounts reads who may not use the node. Without it nobody could be refused, so the server
// does not start.
func (l *lifecycle) loadAccounts(ctx context.Context) error { return l.node.gate.Load(ctx) }

// loadSessions reads the keys of sessions, and which sessions have ended.
func (l *lifecycle) loadSessions(ctx context.Context) error { return l.node.sessions.Load(ctx) }

// loadLogKeys reads the keys that sign heads of logs.
func (l *lifecycle) loadLogKeys(ctx context.Context) error { return l.node.heads.Load(ctx) }

// loadHashKey reads the key with which the log hashes callers.
func (l *lifecycle) loadHashKey(ctx context.Context) error { return l.node.requests.Load(ctx) }

// checkSchema looks at the schema before anybody asks whether the server is ready.
func (l *lifecycle) checkSchema(ctx context.Context) error { return l.node.schema.RunOnce(ctx) }

func (l *lifecycle) startWorkers(ctx context.Context) error {
	stop := inBackground(ctx, l.node.workers(l.log)...)
	l.onClose(func(context.Context) error { stop(); return nil })
	return nil
}

// startPresence starts the one worker that ends before requests are drained.
func (l *lifecycle) startPresence(ctx context.Context) error {
	l.stopPresence = inBackground(ctx, func(ctx context.Context) { l.node.presence.Run(ctx, l.node.rounds, events.SyncInterval) })
	l.onClose(func(context.Context) error { l.stopPresence(); return nil })
	return nil
}

// inBackground starts functions that end with their context. The context does not end with ctx:
// stop ends it and waits for the functions.
func inBackground(ctx context.Context, run ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, f := range run {
		running.Go(func() { f(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

func (l *lifecycle) startConsole(ctx context.Context) (err error) {
	if l.console, err = l.node.console(l.cfg, l.access, l.log); err != nil {
		return err
	}
	stop := inBackground(ctx, l.console.Run)
	l.onClose(func(context.Context) error { stop(); return nil })
	return nil
}

func (l *lifecycle) startHTTP(context.Context) error {
	public, admin := httpServer(l.node.api, l.log), httpServer(l.node.admin(l.access, l.console, l.log), l.log)
	l.public, l.admin = public, admin
	go func() { l.failed <- public.Serve(paceNewcomers(l.publicListen)) }()
	go func() { l.failed <- admin.Serve(l.adminListen) }()
	l.node.ready.Store(true)
	return nil
}

// announce prints both addresses. Programs that start the server wait for these lines.
func (l *lifecycle) announce(context.Context) error {
	_, err := fmt.Fprintf(l.stdout, "mlsd admin on http://%s\nmlsd listening on http://%s\n", l.adminListen.Addr(), l.publicListen.Addr())
	if err != nil {
		return fmt.Errorf("print that the server is ready: %w", err)
	}
	return nil
}

// wait returns when the server must end: nil if ctx has ended.
func (l *lifecycle) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-l.failed:
		return fmt.Errorf("serve: %w", err)
	case <-l.databaseEnded:
		return errors.New("the private PostgreSQL has ended")
	}
}

// shutDown finishes the requests and streams, and then the batches of messages, cursors and
// confirmations.
func (l *lifecycle) shutDown(ctx context.Context) error {
	n := l.node
	n.ready.Store(false)
	l.log.Info("shutting down")
	l.stopPresence() // the devices connect to another node next, and need no push
	n.hub.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	streams := make(chan error, 1)
	go func() { streams <- n.api.Drain(ctx) }() // Shutdown waits for event streams, but not for WebSockets
	err := l.drainRequests(ctx)
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
			l.log.Warn(step.failure, "error", err)
		}
	}
	return errors.Join(err, l.admin.Close())
}

func (l *lifecycle) drainRequests(ctx context.Context) error {
	if err := l.public.Shutdown(ctx); err != nil {
		l.log.Warn("requests were cut off", "error", err)
		return l.public.Close()
	}
	return nil
}
