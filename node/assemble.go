package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/features/attachments"
	"mlsd/features/attachments/filestore"
	"mlsd/features/attachments/s3store"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/relay"
	"mlsd/features/reports"
	"mlsd/features/requests"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tracing"
	"mlsd/internal/worker"
	"mlsd/messages"
	"mlsd/migrations"
	"mlsd/operator"
	"mlsd/operator/dbmetrics"
	"mlsd/operator/invariants"
	"mlsd/people/accounts"
	"mlsd/people/consent"
	"mlsd/people/quota"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

// scrapeInterval is how often, at most, a scrape reads the database.
const scrapeInterval = 15 * time.Second

// Node is the parts of the server, connected to each other.
type Node struct {
	log               *slog.Logger
	db                pools
	tracer            *tracing.Tracer      // nil means that there are no traces
	reg               *prometheus.Registry // metrics of this node
	stored            *prometheus.Registry // metrics that are read from the database
	ready             atomic.Bool
	schema            *schemaWatch
	writes            *writeWatch
	plc               *plcWatch
	faults            *failpoint.Set // nil unless Config.Failpoints
	api               *api.Server
	operator          *operator.Service
	checks            *invariants.Checker
	rounds            *worker.Rounds
	identities        *serviceauth.CachedDirectory
	sessions          *sessions.Service
	heads             *transparency.Service
	network           *network.Service
	serviceKey        *serviceKey // nil if the service deals with no other
	messages          *messages.Log
	cursors           *convos.Cursors
	deliveries        *welcome.Service
	sequencer         *events.Sequencer
	hub               *events.Hub
	signals           *signals.Carrier
	accounts          *accounts.Store
	gate              *accounts.Gate
	admitted          *accounts.Allowlist // nil unless Config.Admit is accounts.ModeAllowlist
	presence          *events.Presence
	push              *push.Worker
	invitations       *network.Sender
	requests          *requests.Recorder
	quotas            *quota.Counter
	sweep             func(context.Context) error
	eraser            *erasure.Worker
	remover           *convos.Remover      // finishes deletions of convos
	messageSweeper    *messages.Sweeper    // nil if messages are kept for ever
	relay             *relay.Follower      // nil unless Config.RelayURL
	attachments       *attachments.Service // nil if there is no store
	attachmentSweeper *attachments.Sweeper // nil if there is no store
	stopPresence      func()

	closers
}

// assemble makes the parts of a node that listens on addr. No part runs yet.
func (n *Node) assemble(cfg Config, addr net.Addr) error {
	db, log := n.db, n.log
	cfg.Clock = cfg.Clock.System()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	n.rounds, n.reg, n.stored = worker.NewRounds(cfg.Clock), prometheus.NewRegistry(), prometheus.NewRegistry()
	n.schema = newSchemaWatch(db.requests, migrations.Newest(), cfg.ServiceDID, log, cfg.Now)
	n.writes = newWriteWatch(db.maintenance, log, cfg.Clock.Now)
	n.plc = newPLCWatch(cfg.PLCURL, log, cfg.Clock.Now)
	n.registerNode()
	if cfg.Failpoints {
		n.faults = failpoint.New()
	}
	if err := cfg.Complete(addr); err != nil {
		return err
	}
	metrics := api.NewMetrics(n.reg)
	auth, err := n.authenticator(cfg, metrics)
	if err != nil {
		return err
	}
	n.sessions = sessions.New(sessions.Config{DB: db.maintenance, Lookups: db.requests, Identities: n.identities,
		Log: log})
	n.heads, err = transparency.New(transparency.Config{DB: db.requests, Service: cfg.ServiceDID.String(),
		Generation: events.Generation, Log: log})
	if err != nil {
		return err
	}
	if !cfg.Services.Nobody() {
		n.serviceKey = &serviceKey{db.maintenance, network.KeysAt(cfg.ServiceKeyFile)}
	}
	n.network = network.New(network.Config{DID: cfg.ServiceDID, Services: n.identities.Services(),
		Keys: n.serviceKey.file(), Trust: cfg.Services, AllowLoopback: cfg.AllowLoopback})
	n.assembleMaintenance(cfg, addr, metrics)
	writes := idem.New(db.requests, metrics, log, n.faults, idem.WithRetire(api.RetireKeys),
		idem.WithLease(cfg.Lifetimes[idem.Default.NSID].Lease), idem.WithBeats(cfg.Clock.Ticker),
		idem.WithTimed(idem.Timed{LookedUp: metrics.KeyLookedUp, Committed: metrics.Committed}))
	n.assembleEvents(cfg)
	if err := errors.Join(n.assembleGate(cfg), n.assembleRelay(cfg)); err != nil {
		return err
	}
	n.quotas = quota.New(db.requests, cfg.Quotas, log, quota.OnUse(metrics.QuotaUsed), quota.ScaledBy(n.gate.Percent))
	erasures := n.assembleEraser()
	if err := n.assembleAttachments(cfg, writes); err != nil {
		return err
	}
	n.sweep = worker.Sweeper(metrics.Swept, n.sweeps(cfg)...)
	n.operator = operator.New(operator.Config{
		DB: db.maintenance, Log: log, Remover: n.remover, Accounts: n.accounts, Erasures: erasures, Changed: n.gate.Wake.Send,
		Wake:  n.sequencer.Wake,
		Heads: n.heads, Lifetimes: cfg.Lifetimes, Quotas: cfg.Quotas, Faults: n.faults,
	})
	vapid, err := vapidKey(cfg.VAPIDKeyFile)
	if err != nil {
		return fmt.Errorf("MLSD_VAPID_KEY_FILE: %w", err)
	}
	if n.push, err = n.pushWorker(cfg, vapid, writes, metrics); err != nil {
		return err
	}
	n.invitations = network.NewSender(network.SenderConfig{Network: n.network, DB: db.requests, Writes: writes,
		Metrics: metrics, Log: log, Faults: n.faults,
		Operation: cfg.Lifetimes[idem.NSIDInvitation], Now: cfg.Clock.Now})
	n.messages = messages.NewLog(db.requests, cfg.EpochWindow, metrics, log, n.faults, messages.OnBatch(metrics.Batched),
		messages.OnReserved(db.reserved),
		messages.Traced(n.tracer), messages.In(events.Stream{Hub: n.hub, Sequencer: n.sequencer}))
	n.cursors = convos.NewCursors(db.requests, n.faults, n.cursorMoved)
	n.deliveries = welcome.New(db.requests, cfg.Welcomes, metrics.WelcomeConfirmed, log, n.faults)
	reportKey, err := reportKey(cfg.ReportKey)
	if err != nil {
		return err
	}
	n.api, err = api.New(api.Config{
		DB: db.requests, Reads: db.reads, Auth: auth, Sessions: n.sessions, Metrics: metrics, Tracer: n.tracer, Log: log,
		Writes:    writes,
		Quotas:    n.quotas,
		Lifetimes: cfg.Lifetimes,
		Committed: n.sequencer.Wake,
		Answered: func(q requests.Request) {
			n.requests.Add(q)
			n.writes.Answered(q)
		},
		Gate:     n.gate,
		Erasures: erasures,
		Erasing:  n.gate.Wake.Send,
		Events:   n.hub,
		Signals:  n.signals, EpochWindow: cfg.EpochWindow,
		Heads:   n.heads,
		Network: n.network,
		Tickets: events.NewTickets(db.requests),
		Push: push.Policy{APNs: cfg.APNs != (push.APNsKey{}), Webhooks: cfg.Webhooks,
			AllowLoopback: cfg.AllowLoopback, WebPush: vapid.Public()},
		Messages:    n.messages,
		Attachments: n.attachments, AttachmentDeleted: n.attachmentDeleted,
		Cursors:    n.cursors,
		Welcomes:   n.deliveries,
		ReportKey:  reportKey,
		ServiceDID: cfg.ServiceDID, PublicURL: cfg.PublicURL, Version: Version(), Rates: cfg.Rates, IP: extractor(cfg),
		Proxies: cfg.TrustedProxies,
	})
	return err
}

// Complete sets what follows from the public listener's address: the service's DID and URL, unless
// the operator has set them.
func (c *Config) Complete(addr net.Addr) error {
	if c.ServiceDID == "" {
		_, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return fmt.Errorf("read the listener's port: %w", err)
		}
		c.ServiceDID = syntax.DID("did:web:localhost%3A" + port)
	}
	c.PublicURL = cmp.Or(c.PublicURL, api.PublicURL(c.ServiceDID))
	return nil
}

// authenticator verifies callers' tokens and records their use.
func (n *Node) authenticator(cfg Config, metrics *api.Metrics) (_ *serviceauth.Validator, err error) {
	n.identities, err = serviceauth.NewDirectory(serviceauth.DirectoryConfig{
		PLCURL: cfg.PLCURL, AllowLoopback: cfg.AllowLoopback, DB: n.db.requests, OnLookup: func(l serviceauth.Lookup) {
			metrics.LookedUp(l)
			n.plc.LookedUp(l)
		},
	})
	if err != nil {
		return nil, err
	}
	return serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(cfg.ServiceDID), Directory: n.identities,
		Replays: serviceauth.NewUsedTokens(n.db.reserved), Urgent: nsid.SendMessage,
		Now: cfg.Now, Clock: n.schema.clock,
	})
}

// assembleMaintenance makes the workers that count and clean up.
func (n *Node) assembleMaintenance(cfg Config, addr net.Addr, metrics *api.Metrics) {
	db := n.db.maintenance
	n.requests = requests.New(requests.Config{
		DB: db, Log: n.log, Node: nodeName(addr), Sample: cfg.Requests.Sample, Keep: cfg.Requests.Keep,
		KeyConflict: mlsapi.ErrIdempotencyConflict,
	})
	n.stored.MustRegister(dbmetrics.New(db, n.log, scrapeInterval, cfg.Clock.Now))
	n.checks = invariants.NewChecker(db)
	n.remover = convos.NewRemover(db, n.faults, transparency.Purge, attachments.Purge)
	metrics.Swept("messages", 0) // the series exists even without a retention
	if cfg.MessageRetention > 0 {
		n.messageSweeper = messages.NewSweeper(db, cfg.MessageRetention, func(n int64) { metrics.Swept("messages", n) },
			n.heads.Keep)
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
func (n *Node) assembleEvents(cfg Config) {
	db, metrics := n.db.requests, api.NewStreamMetrics(n.reg)
	n.presence = events.NewPresence(db, n.log, events.Runs(events.Release{Build: Version(), Schema: migrations.Newest()}))
	// A restored dump lacks the ends of sessions that have ended since the dump.
	endSessions := func(ctx context.Context, tx pgx.Tx) error { return sessions.Restored(ctx, tx) }
	n.hub = events.NewHub(events.HubConfig{DB: db, Reads: n.db.reads, Log: n.log, Metrics: metrics, Presence: n.presence,
		Tracer: n.tracer, OnDump: endSessions})
	n.sequencer = events.NewSequencer(events.SequencerConfig{
		DB: db, Log: n.log, Metrics: metrics, Retention: cfg.EventRetention, Moved: n.hub.Grown, Faults: n.faults,
		Node: n.presence.Node, OnDump: endSessions,
	})
	n.signals = signals.NewCarrier(signals.Config{
		DB: db, Hub: n.hub, Log: n.log, Metrics: api.NewSignalMetrics(n.reg), Busy: n.sendsMuch, Viewers: n.viewers,
	})
}

// sendsMuch reports whether so many messages are being sent that signals are dropped.
func (n *Node) sendsMuch() bool { return n.messages.Crowded() }

// cursorMoved passes on a moved cursor that other members may see.
func (n *Node) cursorMoved(convo uuid.UUID, did syntax.DID, at convos.Cursor) {
	n.signals.Moved(convo, signals.Move{DID: did, Read: at.Read, Delivered: at.Delivered})
}

// viewers implements signals.Viewers.
func (n *Node) viewers(ctx context.Context, convo uuid.UUID, movers,
	viewers []syntax.DID) (func(viewer, mover syntax.DID) bool, error) {
	v, err := consent.ViewersOf(ctx, n.db.requests, convo, movers, viewers)
	return v.See, err
}

// assembleGate makes the gate, which says who may use the node. An account that may no longer use
// the node loses its streams.
func (n *Node) assembleGate(cfg Config) (err error) {
	if cfg.AdmitFile != "" {
		if n.admitted, err = accounts.NewAllowlist(cfg.AdmitFile, n.log); err != nil {
			return fmt.Errorf("MLSD_ADMIT: %w", err)
		}
		n.admitted.OnRemoved(func(did syntax.DID) { n.hub.End(did, accounts.ErrNotAdmitted) })
	}
	n.gate, err = accounts.NewGate(accounts.GateConfig{
		DB: n.db.maintenance, Lookups: n.db.requests, Mode: cfg.Admit, List: n.admitted, OnRefused: n.hub.End, Log: n.log,
	})
	return err
}

// assembleRelay makes the follower of the relay. The metrics exist even without a relay.
func (n *Node) assembleRelay(cfg Config) (err error) {
	n.accounts = accounts.NewStore(cfg.EraseAfter, convos.HandOver)
	metrics := relay.NewMetrics(n.reg)
	if cfg.RelayURL == "" {
		return nil
	}
	source, err := relay.ParseSource(cfg.RelayURL)
	if err != nil {
		return fmt.Errorf("MLSD_RELAY_URL: %w", err)
	}
	n.relay, err = relay.New(relay.Config{
		DB: n.db.maintenance, Source: source, Store: n.accounts, Forget: n.identities.Forget, Stored: n.gate.Wake.Send,
		Metrics: metrics, Log: n.log,
	})
	return err
}

// assembleAttachments makes the parts that keep files, if there is a store.
func (n *Node) assembleAttachments(cfg Config, writes *idem.Store) error {
	var store attachments.Store
	var err error
	switch cfg.Attachments.kind {
	case attachmentsDirectory:
		store, err = filestore.New(cfg.Attachments.Dir)
	case attachmentsS3:
		if store, err = s3store.New(cfg.Attachments.S3); err != nil {
			err = fmt.Errorf("MLSD_ATTACHMENTS: %w", err)
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	operation := cfg.Lifetimes[nsid.CompleteAttachment]
	n.attachments = attachments.New(attachments.Config{
		DB: n.db.requests, Store: store, Writes: writes, ServiceDID: cfg.ServiceDID, MaxSize: cfg.Attachments.MaxSize,
		Life: operation.Life, Lease: operation.Lease, Log: n.log, Faults: n.faults,
	})
	n.attachmentSweeper = attachments.NewSweeper(n.db.maintenance, n.attachments, n.log)
	return nil
}

// attachmentDeleted makes the sweeper delete the objects of an attachment soon.
func (n *Node) attachmentDeleted() {
	if n.attachmentSweeper != nil {
		n.attachmentSweeper.Wake.Send()
	}
}

// assembleEraser makes the worker that erases accounts, and returns its jobs.
func (n *Node) assembleEraser() *erasure.Store {
	jobs := erasure.NewStore(n.accounts)
	n.eraser = erasure.NewWorker(erasure.Config{
		DB: n.db.maintenance, Log: n.log, Jobs: jobs, Accounts: n.accounts, Remover: n.remover, Forget: n.identities.Forget,
		EraseActions: operator.EraseActions, Changed: n.gate.Wake.Send, Wake: n.sequencer.Wake, Faults: n.faults,
		Tell: n.network.TellErasure,
	})
	return jobs
}

// pushWorker makes the worker that pushes to devices, with the providers that the operator has set
// up.
func (n *Node) pushWorker(cfg Config, vapid push.VAPIDKey, writes *idem.Store, metrics *api.Metrics) (*push.Worker,
	error) {
	c := push.Config{
		Operation: cfg.Lifetimes[idem.NSIDPush], DB: n.db.requests, Writes: writes, Withheld: n.gate.Withheld,
		Metrics: metrics, Log: n.log, Faults: n.faults,
		Tracer: n.tracer, Now: cfg.Clock.Now,
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
	if vapid.Public() != nil {
		c.WebPush = push.NewWebPush(vapid, cfg.PublicURL, cfg.AllowLoopback)
	}
	return push.NewWorker(c), nil
}

// vapidKey reads the key for Web Push. Without a file, it has no public half.
func vapidKey(file string) (push.VAPIDKey, error) {
	if file == "" {
		return push.VAPIDKey{}, nil
	}
	return push.ReadVAPIDKey(file)
}

// reportKey reads the key to which reports of abuse are sealed. It returns nil without a text.
func reportKey(text string) (*reports.PublicKey, error) {
	if text == "" {
		return nil, nil
	}
	key, err := reports.ParsePublicKey(text)
	if err != nil {
		return nil, err
	}
	return &key, nil
}
