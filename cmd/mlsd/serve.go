package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mlsd/api"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/gauges"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tally"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/migrations"
	"mlsd/push"
	"mlsd/welcome"
)

const (
	reachTimeout   = 15 * time.Second // for the first connection to the operator's PostgreSQL
	drainTimeout   = 15 * time.Second // for requests under way when the server is told to stop
	stopTimeout    = 30 * time.Second // for the private PostgreSQL
	reaperInterval = 30 * time.Second
	sweepInterval  = time.Minute
	tallyInterval  = 10 * time.Second
	gaugesInterval = 15 * time.Second // as often as a scrape reads the database
	pushInterval   = time.Second
	expiryInterval = 10 * time.Minute // of messages, whose retention is counted in days
)

// serve runs the server until ctx ends, and then shuts down: unready, drain requests and the messages, cursors and confirmations that
// they have left, stop workers, close the pool, stop the private PostgreSQL. To be told to stop while it still starts is no failure.
func serve(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	if err := cfg.checkPublicURL(); err != nil {
		return err
	}
	log := logger(cfg, stderr)
	tuneMemory(log)
	url, own, err := database(ctx, cfg, log)
	if err != nil {
		return unlessInterrupted(ctx, err, log)
	}
	ownDone := (<-chan struct{})(nil)
	if own != nil {
		ownDone = own.Done()
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			err = errors.Join(err, own.Stop(stop))
		}()
	}
	if err := migrations.Up(ctx, url); err != nil {
		return unlessInterrupted(ctx, err, log)
	}
	pool, err := pgpool.Open(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	reserved, err := pgpool.OpenReserved(ctx, url)
	if err != nil {
		return err
	}
	defer reserved.Close()

	public, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer closeQuietly(public, log)
	admin, err := net.Listen("tcp", cfg.AdminListen)
	if err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	defer closeQuietly(admin, log)

	n, err := assemble(cfg, pool, reserved, public.Addr(), log)
	if err != nil {
		return err
	}
	workers, stopWorkers := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { n.welcomes.Run(workers, reaperInterval) })
	running.Go(func() { n.keyPackages.Run(workers, reaperInterval) })
	running.Go(func() { n.cleaner.Run(workers, sweepInterval) })
	running.Go(func() { n.conflicts.Run(workers, tallyInterval) })
	running.Go(func() { n.push.Run(workers, pushInterval) })
	running.Go(func() { n.push.RunSweep(workers, sweepInterval) })
	running.Go(func() { n.sweep(workers, log) })
	if n.expirer != nil {
		running.Go(func() { n.expirer.Run(workers, expiryInterval) })
	}
	running.Go(func() { n.sequencer.Run(workers) })
	running.Go(func() { n.hub.Run(workers) })
	running.Go(func() { n.hub.Listen(workers, n.sequencer) })
	present, stopPresence := context.WithCancel(workers)
	defer stopPresence()
	var presence sync.WaitGroup
	presence.Go(func() { n.presence.Run(present, events.SyncInterval) })
	defer running.Wait()
	defer stopWorkers()

	failed := make(chan error, 2)
	publicServer, adminServer := httpServer(n.api, log), httpServer(n.admin(pool, log), log)
	go func() { failed <- publicServer.Serve(public) }()
	go func() { failed <- adminServer.Serve(admin) }()
	n.ready.Store(true)
	if _, err := fmt.Fprintf(stdout, "mlsd admin on http://%s\nmlsd listening on http://%s\n", admin.Addr(), public.Addr()); err != nil {
		return fmt.Errorf("say that the server is ready: %w", err)
	}

	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case <-ownDone:
		err = errors.New("the private PostgreSQL has ended")
	}
	n.ready.Store(false)
	log.Info("shutting down")
	stopPresence() // first: the devices are about to connect elsewhere, and need no push for that
	presence.Wait()
	n.hub.Close()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- n.api.Drain(drain) }() // Shutdown waits for some streams, and knows nothing of others
	if drainErr := publicServer.Shutdown(drain); drainErr != nil {
		log.Warn("requests were cut off", "error", drainErr)
		err = errors.Join(err, publicServer.Close())
	}
	if drainErr := n.messages.Close(drain); drainErr != nil {
		log.Warn("messages were left unwritten", "error", drainErr)
	}
	if drainErr := n.cursors.Close(drain); drainErr != nil {
		log.Warn("cursors were left unmoved", "error", drainErr)
	}
	if drainErr := n.desk.Close(drain); drainErr != nil {
		log.Warn("Welcomes were left unconfirmed", "error", drainErr)
	}
	if drainErr := <-drained; drainErr != nil {
		log.Warn("streams were cut off", "error", drainErr)
	}
	return errors.Join(err, adminServer.Close())
}

// node is a server put together.
type node struct {
	api         *api.Server
	messages    *messages.Log
	cursors     *convos.Cursors
	desk        *welcome.Desk
	welcomes    *welcome.Reaper
	keyPackages *keypackages.Reaper
	tokens      *serviceauth.UsedTokens
	cleaner     *idem.Cleaner
	expirer     *messages.Expirer // nil if messages are kept for ever
	conflicts   *tally.Tally
	push        *push.Worker
	sequencer   *events.Sequencer
	hub         *events.Hub
	presence    *events.Presence
	tickets     *events.Tickets
	faults      *failpoint.Set // nil unless asked for
	reg         *prometheus.Registry
	ready       atomic.Bool
}

func assemble(cfg Config, pool, reserved *pgxpool.Pool, addr net.Addr, log *slog.Logger) (*node, error) {
	n := &node{reg: prometheus.NewRegistry(), tokens: serviceauth.NewUsedTokens(reserved)}
	n.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if cfg.Failpoints {
		n.faults = failpoint.New()
	}
	if cfg.ServiceDID == "" {
		_, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return nil, fmt.Errorf("read the listener's port: %w", err)
		}
		cfg.ServiceDID = syntax.DID("did:web:localhost%3A" + port)
	}
	if cfg.PublicURL == "" {
		cfg.PublicURL = api.PublicURL(cfg.ServiceDID)
	}
	directory, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: cfg.PLCURL, AllowLoopback: cfg.AllowLoopback})
	if err != nil {
		return nil, err
	}
	auth, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(cfg.ServiceDID), Directory: directory, Replays: n.tokens, Urgent: messages.NSID,
	})
	if err != nil {
		return nil, err
	}
	metrics := api.NewMetrics(n.reg)
	n.conflicts = tally.New(pool, log)
	metrics.OnConflict(n.conflicts.Add)
	n.reg.MustRegister(gauges.New(pool, log, gaugesInterval))
	n.welcomes = welcome.NewReaper(pool, cfg.Welcomes, log, metrics.Reaped)
	n.keyPackages = keypackages.NewReaper(pool, log, metrics.KeyPackagesReaped)
	n.cleaner = idem.NewCleaner(pool, log)
	writes := idem.New(pool, metrics, log, n.faults)
	stream := api.NewStreamMetrics(n.reg)
	n.tickets, n.presence = events.NewTickets(pool), events.NewPresence(pool, log)
	n.hub = events.NewHub(events.HubConfig{DB: pool, Log: log, Metrics: stream, Presence: n.presence})
	n.sequencer = events.NewSequencer(events.SequencerConfig{
		DB: pool, Log: log, Metrics: stream, Retention: cfg.EventRetention, Moved: n.hub.Wake, Faults: n.faults,
	})
	if n.push, err = pushWorker(cfg, pool, writes, metrics, log, n.faults); err != nil {
		return nil, err
	}
	if cfg.MessageRetention > 0 {
		n.expirer = messages.NewExpirer(pool, cfg.MessageRetention, metrics.MessagesExpired, log)
	}
	n.messages = messages.NewLog(pool, cfg.EpochWindow, metrics, log, n.faults, messages.OnBatch(metrics.Batched), messages.OnReserved(reserved))
	n.cursors, n.desk = convos.NewCursors(pool, n.faults), welcome.NewDesk(pool, cfg.Welcomes, n.faults)
	n.api, err = api.New(api.Config{
		DB: pool, Auth: auth, Metrics: metrics, Log: log, Welcomes: cfg.Welcomes,
		Writes:     writes,
		Committed:  n.sequencer.Wake,
		Events:     n.hub,
		Tickets:    n.tickets,
		Push:       push.Policy{APNs: cfg.APNs != (push.APNsKey{}), Webhooks: cfg.Webhooks, AllowLoopback: cfg.AllowLoopback},
		Messages:   n.messages,
		Cursors:    n.cursors,
		Desk:       n.desk,
		ServiceDID: cfg.ServiceDID, PublicURL: cfg.PublicURL, Version: version(), Rates: cfg.Rates, IP: extractor(cfg),
	})
	return n, err
}

// pushWorker makes the worker that tells devices, by the ways that the operator has set up.
func pushWorker(cfg Config, pool *pgxpool.Pool, writes *idem.Store, metrics *api.Metrics, log *slog.Logger, faults *failpoint.Set) (*push.Worker, error) {
	c := push.Config{DB: pool, Writes: writes, Metrics: metrics, Log: log, Faults: faults}
	if cfg.APNs != (push.APNsKey{}) {
		var err error
		if c.APNs, err = push.NewAPNs(cfg.APNs, cfg.APNsHost, nil); err != nil {
			return nil, fmt.Errorf("MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID: %w", err)
		}
	}
	if cfg.Webhooks {
		c.Webhooks = push.NewWebhooks(cfg.AllowLoopback)
	}
	return push.NewWorker(c), nil
}

// extractor believes X-Forwarded-For only from the proxies that the operator names.
func extractor(cfg Config) echo.IPExtractor {
	if len(cfg.TrustedProxies) == 0 {
		return echo.ExtractIPDirect()
	}
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range cfg.TrustedProxies {
		options = append(options, echo.TrustIPRange(&net.IPNet{
			IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}))
	}
	return echo.ExtractIPFromXFFHeader(options...)
}

// database returns the URL of the database to use, and the private PostgreSQL behind it if it is mlsd's own.
func database(ctx context.Context, cfg Config, log *slog.Logger) (string, *localpg.Server, error) {
	if cfg.DatabaseURL != "" {
		return cfg.DatabaseURL, nil, reach(ctx, cfg.DatabaseURL, reachTimeout)
	}
	own, err := localpg.Start(ctx, localpg.Config{DataDir: cfg.DataDir, Logger: log})
	if err != nil {
		return "", nil, fmt.Errorf("start the private PostgreSQL: %w", err)
	}
	if err := own.EnsureDatabase(ctx, localpg.Database); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return "", nil, errors.Join(fmt.Errorf("make the database: %w", err), own.Stop(stop))
	}
	return own.ConnString(localpg.Database), own, nil
}

// reach fails unless the operator's PostgreSQL lets us in before timeout is over. Left to itself, the driver would wait for minutes.
func reach(ctx context.Context, url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(url) // which, unlike pgx's own, knows the pool's settings
	if err != nil {
		return fmt.Errorf("MLSD_DATABASE_URL: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return fmt.Errorf("reach the database that MLSD_DATABASE_URL names: %w", err)
	}
	return conn.Close(ctx)
}

// unlessInterrupted is err, or nil if ctx has ended: then the step was cut short, which its error need not say (initdb's does not).
func unlessInterrupted(ctx context.Context, err error, log *slog.Logger) error {
	if ctx.Err() == nil {
		return err
	}
	log.Warn("told to stop while starting", "error", err)
	return nil
}

// sweep forgets used tokens and tickets that have expired.
func (n *node) sweep(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		for {
			swept, err := n.tokens.Sweep(ctx)
			if err != nil && ctx.Err() == nil {
				log.Error("used tokens could not be swept", "error", err)
			}
			if err != nil || swept < serviceauth.SweepBatch {
				break
			}
		}
		if err := n.tickets.Sweep(ctx); err != nil && ctx.Err() == nil {
			log.Error("tickets could not be swept", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func httpServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// closeQuietly closes a listener that a server may have closed before.
func closeQuietly(l net.Listener, log *slog.Logger) {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		log.Warn("a listener could not be closed", "error", err)
	}
}
