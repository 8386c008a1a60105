package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/terminal"
	"mlsd/internal/tracing"
	"mlsd/migrations"
	"mlsd/operator"
	"mlsd/operator/console"
)

// tracesTimeout bounds the sending of the last spans.
const tracesTimeout = 5 * time.Second

// lifecycle is one run of the server, from its start to its end.
type lifecycle struct {
	cfg     Config
	log     *slog.Logger
	outages *outageLog // log writes to it
	stdout  io.Writer
	shown   *terminal.Progress // shows what the start does
	started func()             // ends what shown shows

	tracer      *tracing.Tracer // nil means that there are no traces
	databaseURL string
	// closed when the private PostgreSQL ends; nil if the operator runs the database
	databaseEnded             <-chan struct{}
	publicListen, adminListen net.Listener
	access                    *operator.Access
	node                      *Node
	console                   *console.Console
	public, admin             *http.Server
	failed                    chan error // from the HTTP servers
	startEnds                 func()     // ends watchStart

	closers
}

// Serve runs the server until ctx ends and then shuts it down. If ctx ends during the start, that
// is no error.
func Serve(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	shown := terminal.New(stderr)
	outages := newOutageLog(cfg.Logger(shown))
	l := &lifecycle{cfg: cfg, log: outages.Logger, outages: outages, stdout: stdout, shown: shown, started: shown.Show(),
		failed: make(chan error, 2)}
	defer l.started()
	defer func() { err = errors.Join(err, l.Close(ctx)) }()
	for _, start := range []func(context.Context) error{
		l.prepare,
		l.startTraces,
		l.startDatabase,
		l.watchStart,
		l.migrate,
		l.checkStandby,
		l.watchDatabase,
		l.listen,
		l.startNode,
		l.startConsole,
		l.startHTTP,
		l.announce,
	} {
		if err := start(ctx); err != nil {
			if ctx.Err() != nil { // the error of the step does not always say so (initdb's does not)
				l.log.Warn("stopped while starting", "error", err)
				return nil
			}
			return err
		}
	}
	return errors.Join(l.wait(ctx), l.node.Shutdown(ctx, l.drainRequests), l.admin.Close())
}

func (l *lifecycle) prepare(context.Context) (err error) {
	if l.access, err = l.cfg.Check(l.log); err != nil {
		return err
	}
	if err := l.cfg.checkPorts(); err != nil {
		return err
	}
	tuneMemory(l.log)
	l.warn(l.cfg.Doubts())
	return nil
}

// warn logs what the operator should change.
func (l *lifecycle) warn(doubts []string) {
	for _, doubt := range doubts {
		l.log.Warn(doubt)
	}
}

// startTraces makes the tracer before the other parts, so that it closes last and sends their
// spans.
func (l *lifecycle) startTraces(ctx context.Context) (err error) {
	l.tracer, err = tracing.New(tracing.Config{URL: l.cfg.TracesURL, Share: l.cfg.TracesSample, Version: Version(),
		Log: l.log})
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
	url, own, err := database(ctx, l.cfg, l.log, l.shown.Step)
	if err != nil {
		return err
	}
	l.databaseURL = url
	if own != nil {
		l.databaseEnded = own.Done()
		l.onClose(func(ctx context.Context) error { return stopDatabase(ctx, own) })
	}
	doubts, err := l.cfg.judgeDatabase(ctx)
	l.warn(doubts)
	return err
}

func (l *lifecycle) migrate(ctx context.Context) error {
	l.shown.Step("making the schema", "")
	if err := l.cfg.claimDatabase(ctx, l.databaseURL, false); err != nil { // before another service changes its schema
		return err
	}
	if err := migrations.Up(ctx, l.databaseURL, migrations.Log(l.log)); err != nil {
		return err
	}
	return l.cfg.claimDatabase(ctx, l.databaseURL, true)
}

// watchDatabase turns the log lines of an outage of the database into one line.
func (l *lifecycle) watchDatabase(ctx context.Context) error {
	l.inBackground(ctx, func(ctx context.Context) {
		l.outages.Run(ctx, func(ctx context.Context) error { return pgpool.Reach(ctx, l.databaseURL) })
	})
	return nil
}

func (l *lifecycle) listen(context.Context) (err error) {
	if l.publicListen, err = Listen(listenFlag, l.cfg.Listen); err != nil {
		return err
	}
	l.onClose(func(context.Context) error { closeQuietly(l.publicListen, l.log); return nil })
	if l.adminListen, err = Listen(adminListenFlag, l.cfg.AdminListen); err != nil {
		return err
	}
	l.onClose(func(context.Context) error { closeQuietly(l.adminListen, l.log); return nil })
	return nil
}

func (l *lifecycle) startNode(ctx context.Context) (err error) {
	if l.node, err = Start(ctx, l.cfg, l.databaseURL, l.publicListen.Addr(), l.tracer, l.log); err == nil {
		l.outages.writes.Store(l.node.writes)
		l.onClose(l.node.Close)
	}
	return err
}

func (l *lifecycle) startConsole(ctx context.Context) (err error) {
	if l.console, err = l.node.console(l.cfg, l.access); err == nil {
		l.inBackground(ctx, l.console.Run)
	}
	return err
}

func (l *lifecycle) startHTTP(context.Context) error {
	l.public = HTTPServer(l.node, l.cfg.TrustedProxies, l.log)
	l.admin = HTTPServer(l.node.admin(l.access, l.console), nil, l.log)
	go func() { l.failed <- l.public.Serve(l.publicListen) }()
	go func() { l.failed <- l.admin.Serve(l.adminListen) }()
	return nil
}

// announce prints both addresses. Programs that start the server wait for these lines.
func (l *lifecycle) announce(context.Context) error {
	l.startEnds()
	l.started()
	_, err := fmt.Fprintf(l.stdout, "mlsd admin on http://%s\nmlsd listening on http://%s\n", l.adminListen.Addr(),
		l.publicListen.Addr())
	return errs.Wrap(err, "print that the server is ready")
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

func (l *lifecycle) drainRequests(ctx context.Context) error {
	if err := l.public.Shutdown(ctx); err != nil {
		l.log.Warn("requests were cut off", "error", err)
		return l.public.Close()
	}
	return nil
}
