package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/accounts"
	"mlsd/admin"
	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/erasure"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/dbmetrics"
	"mlsd/internal/failpoint"
	"mlsd/internal/invariants"
	"mlsd/internal/nsid"
	"mlsd/internal/quota"
	"mlsd/internal/relay"
	"mlsd/internal/requests"
	"mlsd/internal/serviceauth"
	"mlsd/internal/sessions"
	"mlsd/internal/tracing"
	"mlsd/internal/usage"
	"mlsd/internal/worker"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/migrations"
	"mlsd/push"
	"mlsd/welcome"
)

// scrapeInterval is how often, at most, a scrape reads the database.
const scrapeInterval = 15 * time.Second

// node is the parts of the server, connected to each other. None of them runs yet.
type node struct {
	db           pools
	tracer       *tracing.Tracer      // nil: none
	reg          *prometheus.Registry // of the metrics of this node
	stored       *prometheus.Registry // of those that are read from the database
	ready        atomic.Bool
	schema       *schemaWatch
	faults       *failpoint.Set // nil unless Config.Failpoints
	api          *api.Server
	operator     *admin.Service
	checks       *invariants.Checker
	rounds       *worker.Rounds
	identities   *serviceauth.CachedDirectory
	sessions     *sessions.Service
	messages     *messages.Log
	cursors      *convos.Cursors
	deliveries   *welcome.Service
	sequencer    *events.Sequencer
	hub          *events.Hub
	accounts     *accounts.Store
	gate         *accounts.Gate
	admitted     *accounts.Allowlist // nil unless Config.Admit is accounts.ModeAllowlist
	presence     *events.Presence
	push         *push.Worker
	usage        *usage.Counter
	requests     *requests.Recorder
	quotas       *quota.Counter
	welcomes     *welcome.Reaper
	keyPackages  *keypackages.Reaper
	cleaner      *idem.Cleaner
	eraser       *erasure.Worker
	remover      *convos.Remover     // finishes deletions of convos
	reaperFailed func(reaper string) // counts a failed round
	expirer      *messages.Expirer   // nil if messages are kept for ever
	relay        *relay.Follower     // nil unless Config.RelayURL
}

// assemble makes a node that listens on addr. tracer can be nil.
func assemble(cfg Config, db pools, tracer *tracing.Tracer, addr net.Addr, log *slog.Logger) (*node, error) {
	n := &node{db: db, tracer: tracer, rounds: worker.NewRounds(), reg: prometheus.NewRegistry(), stored: prometheus.NewRegistry(), schema: newSchemaWatch(db.requests, migrations.Newest(), log)}
	n.registerNode()
	if cfg.Failpoints {
		n.faults = failpoint.New()
	}
	if err := cfg.complete(addr); err != nil {
		return nil, err
	}
	metrics := api.NewMetrics(n.reg)
	auth, err := n.authenticator(cfg, metrics)
	if err != nil {
		return nil, err
	}
	n.sessions = sessions.New(sessions.Config{DB: db.maintenance, Lookups: db.requests, Identities: n.identities, Log: log})
	n.assembleMaintenance(cfg, addr, metrics, log)
	n.quotas = quota.New(db.requests, cfg.Quotas, log, quota.OnUse(metrics.QuotaUsed))
	writes := idem.New(db.requests, metrics, log, n.faults, idem.WithRetire(api.RetireKeys),
		idem.WithLease(cfg.Lifetimes[idem.Default.NSID].Lease))
	n.assembleEvents(cfg, log)
	if err := errors.Join(n.assembleGate(cfg, log), n.assembleRelay(cfg, log)); err != nil {
		return nil, err
	}
	erasures := n.assembleEraser(log)
	n.operator = admin.New(admin.Config{
		DB: db.maintenance, Log: log, Remover: n.remover, Accounts: n.accounts, Erasures: erasures, Changed: n.gate.Wake, Wake: n.sequencer.Wake,
	})
	if n.push, err = n.pushWorker(cfg, writes, metrics, log); err != nil {
		return nil, err
	}
	n.messages = messages.NewLog(db.requests, cfg.EpochWindow, metrics, log, n.faults, messages.OnBatch(metrics.Batched), messages.OnReserved(db.reserved),
		messages.Traced(tracer))
	n.cursors, n.deliveries = convos.NewCursors(db.requests, n.faults), welcome.New(db.requests, cfg.Welcomes, metrics.WelcomeConfirmed, log, n.faults)
	n.api, err = api.New(api.Config{
		DB: db.requests, Reads: db.reads, Auth: auth, Sessions: n.sessions, Metrics: metrics, Tracer: tracer, Log: log,
		Writes:     writes,
		Quotas:     n.quotas,
		Lifetimes:  cfg.Lifetimes,
		Committed:  n.sequencer.Wake,
		Served:     n.usage.Add,
		Answered:   n.requests.Add,
		Gate:       n.gate,
		Erasures:   erasures,
		Erasing:    n.gate.Wake,
		Events:     n.hub,
		Tickets:    events.NewTickets(db.requests),
		Push:       push.Policy{APNs: cfg.APNs != (push.APNsKey{}), Webhooks: cfg.Webhooks, AllowLoopback: cfg.AllowLoopback, Targets: cfg.PushTargets},
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
func (n *node) authenticator(cfg Config, metrics *api.Metrics) (_ *serviceauth.Validator, err error) {
	n.identities, err = serviceauth.NewDirectory(serviceauth.DirectoryConfig{
		PLCURL: cfg.PLCURL, AllowLoopback: cfg.AllowLoopback, DB: n.db.requests, OnLookup: metrics.LookedUp,
	})
	if err != nil {
		return nil, err
	}
	return serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(cfg.ServiceDID), Directory: n.identities,
		Replays: serviceauth.NewUsedTokens(n.db.reserved), Urgent: nsid.SendMessage,
	})
}

// assembleMaintenance makes the workers that count and clean up.
func (n *node) assembleMaintenance(cfg Config, addr net.Addr, metrics *api.Metrics, log *slog.Logger) {
	db := n.db.maintenance
	n.usage = usage.New(db, log, mlsapi.ErrIdempotencyConflict)
	n.requests = requests.New(requests.Config{DB: db, Log: log, Node: nodeName(addr), Sample: cfg.Requests.Sample, Keep: cfg.Requests.Keep})
	n.stored.MustRegister(dbmetrics.New(db, log, scrapeInterval))
	n.welcomes = welcome.NewReaper(db, cfg.Welcomes, metrics.Reaped)
	n.keyPackages = keypackages.NewReaper(db, metrics.KeyPackagesReaped)
	n.checks = invariants.NewChecker(db)
	n.cleaner = idem.NewCleaner(db, api.RetireKeys, metrics.RecordsCleaned)
	n.remover = convos.NewRemover(db, n.faults)
	n.reaperFailed = metrics.ReaperFailed
	if cfg.MessageRetention > 0 {
		n.expirer = messages.NewExpirer(db, cfg.MessageRetention, metrics.MessagesExpired)
	}
}

// nodeName names this node to operators: its host and the port of the public listener.
func nodeName(addr net.Addr) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		host = net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	}
	return host
}

// assembleEvents makes the parts that deliver events to subscribers.
func (n *node) assembleEvents(cfg Config, log *slog.Logger) {
	db, metrics := n.db.requests, api.NewStreamMetrics(n.reg)
	n.presence = events.NewPresence(db, log, events.Runs(events.Release{Build: version(), Schema: migrations.Newest()}))
	n.hub = events.NewHub(events.HubConfig{DB: db, Reads: n.db.reads, Log: log, Metrics: metrics, Presence: n.presence, Tracer: n.tracer})
	n.sequencer = events.NewSequencer(events.SequencerConfig{
		DB: db, Log: log, Metrics: metrics, Retention: cfg.EventRetention, Moved: n.hub.Wake, Faults: n.faults,
	})
}

// assembleGate makes what says who may use the node. An account that may no longer use it loses its
// streams.
func (n *node) assembleGate(cfg Config, log *slog.Logger) (err error) {
	if cfg.AdmitFile != "" {
		if n.admitted, err = accounts.NewAllowlist(cfg.AdmitFile, log); err != nil {
			return fmt.Errorf("MLSD_ADMIT_FILE: %w", err)
		}
		n.admitted.OnRemoved(func(did syntax.DID) { n.hub.End(did, accounts.ErrNotAdmitted) })
	}
	n.gate, err = accounts.NewGate(accounts.GateConfig{
		DB: n.db.maintenance, Lookups: n.db.requests, Mode: cfg.Admit, List: n.admitted, Refused: n.hub.End, Log: log,
	})
	return err
}

// assembleRelay makes the follower of the relay. The metrics exist without it too.
func (n *node) assembleRelay(cfg Config, log *slog.Logger) (err error) {
	n.accounts = accounts.NewStore(cfg.EraseAfter)
	metrics := relay.NewMetrics(n.reg)
	if cfg.RelayURL == "" {
		return nil
	}
	source, err := relay.ParseSource(cfg.RelayURL, cfg.RelayKind)
	if err != nil {
		return fmt.Errorf("MLSD_RELAY_URL: %w", err)
	}
	n.relay, err = relay.New(relay.Config{
		DB: n.db.maintenance, Source: source, Store: n.accounts, Forget: n.identities.Forget, Stored: n.gate.Wake, Metrics: metrics, Log: log,
	})
	return err
}

// assembleEraser makes the worker that erases accounts, and returns its jobs.
func (n *node) assembleEraser(log *slog.Logger) *erasure.Store {
	jobs := erasure.NewStore(n.accounts)
	n.eraser = erasure.NewWorker(erasure.Config{
		DB: n.db.maintenance, Log: log, Jobs: jobs, Accounts: n.accounts, Remover: n.remover, Forget: n.identities.Forget,
		EraseActions: admin.EraseActions, Changed: n.gate.Wake, Wake: n.sequencer.Wake, Faults: n.faults,
	})
	return jobs
}

// pushWorker makes the worker that pushes to devices, with the providers that the operator has set
// up.
func (n *node) pushWorker(cfg Config, writes *idem.Store, metrics *api.Metrics, log *slog.Logger) (*push.Worker, error) {
	c := push.Config{
		Operation: cfg.Lifetimes[idem.NSIDPush], DB: n.db.requests, Writes: writes, Withheld: n.gate.Withheld, Metrics: metrics, Log: log, Faults: n.faults,
		Tracer: n.tracer,
	}
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
