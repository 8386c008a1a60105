package main

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/dbmetrics"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/serviceauth"
	"mlsd/internal/usage"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/push"
	"mlsd/welcome"
)

// scrapeInterval is how often, at most, a scrape reads the database.
const scrapeInterval = 15 * time.Second

// node is the parts of the server, connected to each other. None of them runs yet.
type node struct {
	db           pools
	reg          *prometheus.Registry
	ready        atomic.Bool
	faults       *failpoint.Set // nil unless Config.Failpoints
	api          *api.Server
	messages     *messages.Log
	cursors      *convos.Cursors
	deliveries   *welcome.Service
	sequencer    *events.Sequencer
	hub          *events.Hub
	presence     *events.Presence
	push         *push.Worker
	usage        *usage.Counter
	welcomes     *welcome.Reaper
	keyPackages  *keypackages.Reaper
	cleaner      *idem.Cleaner
	reaperFailed func(reaper string) // counts a failed round
	expirer      *messages.Expirer   // nil if messages are kept for ever
}

// assemble makes a node that listens on addr.
func assemble(cfg Config, db pools, addr net.Addr, log *slog.Logger) (*node, error) {
	n := &node{db: db, reg: prometheus.NewRegistry()}
	n.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if cfg.Failpoints {
		n.faults = failpoint.New()
	}
	if err := cfg.complete(addr); err != nil {
		return nil, err
	}
	auth, err := authenticator(cfg, db)
	if err != nil {
		return nil, err
	}
	metrics := api.NewMetrics(n.reg)
	n.assembleMaintenance(cfg, metrics, log)
	writes := idem.New(db.requests, metrics, log, n.faults, idem.WithRetire(api.RetireKeys),
		idem.WithLease(cfg.Lifetimes[idem.Default.NSID].Lease))
	n.assembleEvents(cfg, log)
	if n.push, err = pushWorker(cfg, db, writes, metrics, log, n.faults); err != nil {
		return nil, err
	}
	n.messages = messages.NewLog(db.requests, cfg.EpochWindow, metrics, log, n.faults, messages.OnBatch(metrics.Batched), messages.OnReserved(db.reserved))
	n.cursors, n.deliveries = convos.NewCursors(db.requests, n.faults), welcome.New(db.requests, cfg.Welcomes, metrics.WelcomeConfirmed, log, n.faults)
	n.api, err = api.New(api.Config{
		DB: db.requests, Auth: auth, Metrics: metrics, Log: log,
		Writes:     writes,
		Lifetimes:  cfg.Lifetimes,
		Committed:  n.sequencer.Wake,
		Served:     n.usage.Add,
		Events:     n.hub,
		Tickets:    events.NewTickets(db.requests),
		Push:       push.Policy{APNs: cfg.APNs != (push.APNsKey{}), Webhooks: cfg.Webhooks, AllowLoopback: cfg.AllowLoopback},
		Messages:   n.sender(),
		Cursors:    n.cursors,
		Welcomes:   n.deliveries,
		ServiceDID: cfg.ServiceDID, PublicURL: cfg.PublicURL, Version: version(), Rates: cfg.Rates, IP: extractor(cfg),
	})
	return n, err
}

// complete sets what follows from the public listener's address: the service's DID and URL, unless
// the operator has set them.
func (c *Config) complete(addr net.Addr) error {
	if c.ServiceDID == "" {
		_, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return fmt.Errorf("read the listener's port: %w", err)
		}
		c.ServiceDID = syntax.DID("did:web:localhost%3A" + port)
	}
	if c.PublicURL == "" {
		c.PublicURL = api.PublicURL(c.ServiceDID)
	}
	return nil
}

// authenticator verifies callers' tokens and records their use.
func authenticator(cfg Config, db pools) (*serviceauth.Validator, error) {
	directory, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: cfg.PLCURL, AllowLoopback: cfg.AllowLoopback})
	if err != nil {
		return nil, err
	}
	return serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(cfg.ServiceDID), Directory: directory,
		Replays: serviceauth.NewUsedTokens(db.reserved), Urgent: nsid.SendMessage,
	})
}

// assembleMaintenance makes the workers that count and clean up.
func (n *node) assembleMaintenance(cfg Config, metrics *api.Metrics, log *slog.Logger) {
	db := n.db.maintenance
	n.usage = usage.New(db, log, mlsapi.ErrIdempotencyConflict)
	n.reg.MustRegister(dbmetrics.New(db, log, scrapeInterval))
	n.welcomes = welcome.NewReaper(db, cfg.Welcomes, metrics.Reaped)
	n.keyPackages = keypackages.NewReaper(db, metrics.KeyPackagesReaped)
	n.cleaner = idem.NewCleaner(db, api.RetireKeys, metrics.RecordsCleaned)
	n.reaperFailed = metrics.ReaperFailed
	if cfg.MessageRetention > 0 {
		n.expirer = messages.NewExpirer(db, cfg.MessageRetention, metrics.MessagesExpired)
	}
}

// assembleEvents makes the parts that deliver events to subscribers.
func (n *node) assembleEvents(cfg Config, log *slog.Logger) {
	db, metrics := n.db.requests, api.NewStreamMetrics(n.reg)
	n.presence = events.NewPresence(db, log)
	n.hub = events.NewHub(events.HubConfig{DB: db, Log: log, Metrics: metrics, Presence: n.presence})
	n.sequencer = events.NewSequencer(events.SequencerConfig{
		DB: db, Log: log, Metrics: metrics, Retention: cfg.EventRetention, Moved: n.hub.Wake, Faults: n.faults,
	})
}

// pushWorker makes the worker that pushes to devices, with the providers that the operator has set
// up.
func pushWorker(cfg Config, db pools, writes *idem.Store, metrics *api.Metrics, log *slog.Logger, faults *failpoint.Set) (*push.Worker, error) {
	c := push.Config{Operation: cfg.Lifetimes[idem.NSIDPush], DB: db.requests, Writes: writes, Metrics: metrics, Log: log, Faults: faults}
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
