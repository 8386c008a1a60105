package api

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
	"mlsd/features/push"
	"mlsd/features/requests"
	"mlsd/idem"
	"mlsd/internal/metric"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// Metrics counts what the public listener and the services that it calls do.
type Metrics struct {
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	idempotency *prometheus.CounterVec
	keyLookups  prometheus.Histogram
	commits     prometheus.Histogram
	storage     *prometheus.CounterVec
	swept       *prometheus.CounterVec
	fetches     *prometheus.CounterVec
	confirms    *prometheus.CounterVec
	epochs      *prometheus.CounterVec
	transitions *prometheus.CounterVec
	forks       prometheus.Counter
	disputes    prometheus.Counter

	quotaRefusals *prometheus.CounterVec
	quotaUse      *prometheus.GaugeVec

	lookups          *prometheus.HistogramVec
	lookupsRefused   *prometheus.CounterVec
	transfersCut     *prometheus.CounterVec
	expensiveWaiting prometheus.Gauge
	expensiveRefused *prometheus.CounterVec

	batches      prometheus.Histogram
	pushAttempts *prometheus.CounterVec
	pushJobs     *prometheus.CounterVec
	challenges   *prometheus.CounterVec
	invitations  *prometheus.CounterVec
	pushBacklog  prometheus.Gauge
	pushOldest   prometheus.Gauge

	streams       *prometheus.GaugeVec
	streamsEnded  *prometheus.CounterVec
	streamsEvents *prometheus.CounterVec
	streamsBytes  *prometheus.CounterVec
	webSockets    sentCounters // of streamsEvents and streamsBytes
	serverSent    sentCounters
}

// Kinds of streams, in metrics.
const (
	kindWebSocket  = "websocket"
	kindServerSent = "sse"
)

// Limits of look-ups and of expensive requests, in metrics: by address, by caller, by node, and by
// waiting time.
const (
	limitAddress = "address"
	limitCaller  = "caller"
	limitNode    = "node"
	limitTime    = "time"
)

// Kinds of failures of the database, in metrics.
const (
	storageUnknown     = "unknown_outcome"
	storageUnavailable = "unavailable"
	storageContended   = "contended"
	storageError       = "error"
)

// databaseBuckets are for durations of one or two round trips to the database, in seconds.
var databaseBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// Kinds of transfers, in metrics.
const (
	transferBody   = "body"
	transferAnswer = "answer"
	transferDrain  = "drain"
)

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	of := metric.For(reg)
	m := &Metrics{
		requests: of.Counters("mlsd_requests_total",
			"Requests by method, status and error name, subscriptions too.", "nsid", "status", "error"),
		duration: of.TimesBy("mlsd_request_seconds", "Time to answer, by method.", databaseBuckets, "nsid"),
		idempotency: of.Counters("mlsd_idempotency_total",
			"Uses of idempotency keys by method and outcome: first (a write took effect), replay (a hit), "+
				"conflict, in_progress, expired (used anew after the record's lifetime). Work outside the database "+
				"(mlsd.push, mlsd.invitation, completeAttachment) also has takeover and heartbeat_lost.",
			"nsid", "outcome"),
		keyLookups: of.Times("mlsd_idempotency_lookup_seconds",
			"Time to take an idempotency key, or to find that it was used, waiting included. sendMessage's is "+
				"part of its transaction.", databaseBuckets),
		commits: of.Times("mlsd_commit_seconds",
			"Time to store a write's answer and to commit. sendMessage's is part of its transaction.",
			databaseBuckets),
		storage: of.Counters("mlsd_storage_failures_total",
			"Requests that failed in the database, by kind: unknown_outcome (the answer to a COMMIT was lost, "+
				"and no record shows what it did), unavailable, contended (a lock, a deadlock), error (a defect).",
			"kind"),
		swept: of.Counters("mlsd_swept_rows_total",
			"Rows that this node has deleted or changed because their time was over, such as welcomes_released, "+
				"welcomes_consumed (without a confirmation), key_packages_orphaned, idempotency_keys and messages.",
			"rows"),
		fetches: of.Counters("mlsd_welcome_fetches_total",
			"getWelcome by outcome: the error's name, or ok.", "outcome"),
		confirms: of.Counters("mlsd_welcome_confirmations_total",
			"confirmWelcome by outcome: success, failure (once per lease), unchanged (twice or late), unknown "+
				"(no fetched Welcome).", "outcome"),
		epochs: of.Counters("mlsd_epoch_conflicts_total", "EpochMismatch answers, by method.", "nsid"),
		forks: of.Counter("mlsd_forked_epochs_total",
			"Epochs that two members have reported with different authenticators to this node."),
		disputes: of.Counter("mlsd_disputes_total", "Disputes that have begun with a report to this node."),

		quotaRefusals: of.Counters("mlsd_quota_refusals_total", "QuotaExceeded answers, by quota.", "quota"),
		quotaUse: of.Gauges("mlsd_quota_highest_use",
			"The highest share of a quota that any DID, address or convo known to this node has used today. 1 is "+
				"the whole quota; take the max.", "quota"),

		lookups: of.TimesBy("mlsd_identity_lookup_seconds",
			"Time of look-ups of DID documents, by source: plc (the PLC directory), web (the host of a did:web), and "+
				"outcome: found, invalid (no document, or a useless one), busy (a limit was reached), failed.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5}, "source", "outcome"),
		lookupsRefused: of.Counters("mlsd_lookups_refused_total",
			"Requests that were refused because a limit of look-ups of DID documents is reached: the limit of an "+
				"address (429), or of the node (503).", "limit"),
		transfersCut: of.Counters("mlsd_transfers_cut_total",
			"Transfers that were cut to make space for others, or because their address had too many slow ones: "+
				"body, answer, drain (the rest of a refused body).", "kind"),
		expensiveWaiting: of.Gauge("mlsd_expensive_requests_waiting",
			"Expensive requests that wait to be admitted."),
		expensiveRefused: of.Counters("mlsd_expensive_requests_refused_total",
			"Expensive requests that were not admitted, by the limit that was reached: caller (too many of its "+
				"requests wait: 429), node (too many wait: 503), time (it waited for 5 s: 503).", "limit"),

		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mlsd_message_batch_size", Help: "Messages that shared a transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9)}),
		pushAttempts: of.Counters("mlsd_push_attempts_total",
			"Push calls to devices by kind, result (delivered, gone, refused, retry) and reason. Reasons are the "+
				"status of HTTP, forbidden (the address may not be called), timeout, name (of the host), tls, "+
				"connection, other.", "kind", "result", "reason"),
		pushJobs: of.Counters("mlsd_push_jobs_total",
			"Push jobs that have ended: done, dead, superseded by a newer one of the device, connected: its "+
				"device needed no call.", "outcome"),
		challenges: of.Counters("mlsd_push_challenges_total",
			"Challenges of webhooks by result (passed, failed) and reason. Reasons are those of "+
				"mlsd_push_attempts_total, and challenge (a wrong answer).", "result", "reason"),
		invitations: of.Counters("mlsd_invitations_total",
			"Invitations to people of other services: done (their home has taken it), dead (it has refused it "+
				"for good), retry (an attempt that is made again).", "outcome"),
		pushBacklog: of.Gauge("mlsd_push_backlog",
			"Push jobs that have neither ended nor are deferred, of all nodes, once a minute; take the max."),
		pushOldest: of.Gauge("mlsd_push_backlog_seconds",
			"Age of the oldest job of mlsd_push_backlog; take the max."),

		streams: of.Gauges("mlsd_subscriptions", "Subscriptions that are open, by kind: websocket, sse.", "kind"),
		streamsEnded: of.Counters("mlsd_subscriptions_ended_total",
			"Subscriptions that have ended, by kind and reason: client (it went away), too_slow (to read), "+
				"no_pong, protocol (it sent something), replaced (by a newer one of its device), restart (of the "+
				"node), refused (the account may no longer use the node), session (it has ended or expired), error "+
				"(see the log).", "kind", "reason"),
		streamsEvents: of.Counters("mlsd_subscription_events_total",
			"Events that were sent, by kind of subscription.", "kind"),
		streamsBytes: of.Counters("mlsd_subscription_bytes_total",
			"Bytes of the events that were sent, by kind of subscription.", "kind"),
	}
	m.transitions = of.Counters("mlsd_invalid_transitions_total",
		"State transitions that the database refused: a defect.", "entity")
	reg.MustRegister(m.batches)
	m.begin()
	return m
}

// QuotaUsed sets the highest share of a quota that a subject has used.
func (m *Metrics) QuotaUsed(quota string, share float64) {
	m.quotaUse.WithLabelValues(quota).Set(share)
}

// KeyOutcomes returns what mlsd_idempotency_total counts for the keys of a method.
func KeyOutcomes() []string { return []string{"first", "replay", "conflict", "in_progress", "expired"} }

// begin creates the series before their first count, because a rate does not see the count with
// which a series begins.
func (m *Metrics) begin() {
	metric.Begin(m.transitions, "welcome", "key_package", "reservation", "push_job", "sent_invitation",
		"dispute", "attachment")
	metric.Begin(m.quotaRefusals, quota.Names()...)
	metric.Begin(m.lookupsRefused, limitAddress, limitNode)
	metric.Begin(m.expensiveRefused, limitCaller, limitNode, limitTime)
	for _, source := range serviceauth.LookupSources() {
		for _, outcome := range serviceauth.LookupOutcomes() {
			m.lookups.WithLabelValues(string(source), string(outcome))
		}
	}
	metric.Begin(m.transfersCut, transferBody, transferAnswer, transferDrain)
	metric.Begin(m.pushJobs, "done", "dead", "superseded", "connected")
	metric.Begin(m.invitations, "done", "dead", "retry")
	m.challenges.WithLabelValues("passed", "")
	for _, reason := range push.Reasons() {
		m.challenges.WithLabelValues("failed", reason)
	}
	metric.Begin(m.storage, storageUnknown, storageUnavailable, storageContended, storageError)
	for _, o := range Lifetimes() {
		if o.Lease == 0 || o.NSID == "" {
			continue
		}
		for _, outcome := range []string{"takeover", "heartbeat_lost", "in_progress"} {
			m.idempotency.WithLabelValues(o.NSID, outcome)
		}
	}
	metric.Begin(m.fetches, "ok", mlsapi.ErrWelcomeNotFound, errorlist.InternalServerError,
		errorlist.ServiceUnavailable)
	metric.Begin(m.confirms, welcome.Success, welcome.Failure, welcome.Unchanged, welcome.Unknown)
	m.webSockets, m.serverSent = m.sentCounters(kindWebSocket), m.sentCounters(kindServerSent)
	for _, kind := range []string{kindWebSocket, kindServerSent} {
		m.streams.WithLabelValues(kind)
		for _, reason := range []string{"client", "too_slow", "no_pong", "protocol", "replaced", "restart", "refused",
			"session", "error"} {
			m.streamsEnded.WithLabelValues(kind, reason)
		}
	}
	for name, p := range methods {
		if p.recordLife == 0 && name != nsid.SendMessage {
			continue
		}
		for _, outcome := range KeyOutcomes() {
			m.idempotency.WithLabelValues(name, outcome)
		}
	}
}

// otherMethod is the label of requests for no known method.
const otherMethod = "other"

// observe counts one request. The id of the request's trace becomes an exemplar.
func (m *Metrics) observe(q *requests.Request) {
	m.requests.WithLabelValues(q.NSID, strconv.Itoa(q.Status), q.Error).Inc()
	duration := m.duration.WithLabelValues(q.NSID)
	if exemplars, ok := duration.(prometheus.ExemplarObserver); ok && q.Trace != "" {
		exemplars.ObserveWithExemplar(q.Took.Seconds(), prometheus.Labels{"trace_id": q.Trace})
	} else {
		duration.Observe(q.Took.Seconds())
	}
	if q.Error == mlsapi.ErrEpochMismatch {
		m.epochs.WithLabelValues(q.NSID).Inc()
	}
	if methods[q.NSID].countOutcomes {
		m.fetches.WithLabelValues(cmp.Or(q.Error, "ok")).Inc()
	}
}

// First implements idem.Metrics.
func (m *Metrics) First(nsid string) { m.idempotency.WithLabelValues(nsid, "first").Inc() }

// Replayed implements idem.Metrics.
func (m *Metrics) Replayed(nsid string) { m.idempotency.WithLabelValues(nsid, "replay").Inc() }

// Conflicted implements idem.Metrics.
func (m *Metrics) Conflicted(nsid string) { m.idempotency.WithLabelValues(nsid, "conflict").Inc() }

// InProgress implements idem.Metrics.
func (m *Metrics) InProgress(nsid string) { m.idempotency.WithLabelValues(nsid, "in_progress").Inc() }

// Expired implements idem.Metrics.
func (m *Metrics) Expired(nsid string) { m.idempotency.WithLabelValues(nsid, "expired").Inc() }

// TakenOver implements idem.Metrics.
func (m *Metrics) TakenOver(nsid string) { m.idempotency.WithLabelValues(nsid, "takeover").Inc() }

// HeartbeatLost implements idem.Metrics.
func (m *Metrics) HeartbeatLost(nsid string) {
	m.idempotency.WithLabelValues(nsid, "heartbeat_lost").Inc()
}

// KeyLookedUp observes how long the look-up of a key took.
func (m *Metrics) KeyLookedUp(took time.Duration) { m.keyLookups.Observe(took.Seconds()) }

// Committed observes how long the end of a write took.
func (m *Metrics) Committed(took time.Duration) { m.commits.Observe(took.Seconds()) }

// storageFailed counts a request that failed with err because of the database.
func (m *Metrics) storageFailed(err error) {
	switch code := pgpool.Code(err); {
	case errors.Is(err, idem.ErrUnknownOutcome):
		m.storage.WithLabelValues(storageUnknown).Inc()
	case pgpool.LockTimeout(err), code == "40P01", code == "40001":
		m.storage.WithLabelValues(storageContended).Inc()
	case pgpool.Unavailable(err):
		m.storage.WithLabelValues(storageUnavailable).Inc()
	case code != "":
		m.storage.WithLabelValues(storageError).Inc()
	}
}

// WelcomeConfirmed counts one confirmation of a Welcome.
func (m *Metrics) WelcomeConfirmed(o welcome.Outcome) { m.confirms.WithLabelValues(string(o)).Inc() }

// Batched counts messages that shared a transaction.
func (m *Metrics) Batched(messages int) { m.batches.Observe(float64(messages)) }

// PushAttempted implements push.Metrics.
func (m *Metrics) PushAttempted(kind push.Kind, result, reason string) {
	m.pushAttempts.WithLabelValues(string(kind), result, reason).Inc()
}

// PushEnded implements push.Metrics.
func (m *Metrics) PushEnded(outcome string) { m.pushJobs.WithLabelValues(outcome).Inc() }

// InvitationSent implements network.SenderMetrics.
func (m *Metrics) InvitationSent(outcome string) { m.invitations.WithLabelValues(outcome).Inc() }

// PushChallenged implements push.Metrics.
func (m *Metrics) PushChallenged(result, reason string) {
	m.challenges.WithLabelValues(result, reason).Inc()
}

// PushBacklog implements push.Metrics.
func (m *Metrics) PushBacklog(jobs int64, oldest time.Duration) {
	m.pushBacklog.Set(float64(jobs))
	m.pushOldest.Set(oldest.Seconds())
}

// LookedUp counts a look-up of a DID document.
func (m *Metrics) LookedUp(l serviceauth.Lookup) {
	m.lookups.WithLabelValues(string(l.Source), string(l.Outcome)).Observe(l.Took.Seconds())
}

// lookupRefused counts a request whose caller was not looked up, if err says that it was not.
func (m *Metrics) lookupRefused(err error) {
	switch {
	case errors.Is(err, serviceauth.ErrSpent):
		m.lookupsRefused.WithLabelValues(limitAddress).Inc()
	case errors.Is(err, serviceauth.ErrBusy):
		m.lookupsRefused.WithLabelValues(limitNode).Inc()
	}
}

// transferEnded counts a transfer that was cut.
func (m *Metrics) transferEnded(kind string, cut bool) {
	if cut {
		m.transfersCut.WithLabelValues(kind).Inc()
	}
}

// streamBegins counts a stream as open until ends is called.
func (m *Metrics) streamBegins(kind string) (ends func()) {
	open := m.streams.WithLabelValues(kind)
	open.Inc()
	return open.Dec
}

// streamEnded counts the end of a stream by its reason.
func (m *Metrics) streamEnded(kind, reason string) {
	m.streamsEnded.WithLabelValues(kind, reason).Inc()
}

// sentCounters count what the streams of one kind have sent. The counters are looked up once.
type sentCounters struct{ events, bytes prometheus.Counter }

func (m *Metrics) sentCounters(kind string) sentCounters {
	return sentCounters{m.streamsEvents.WithLabelValues(kind), m.streamsBytes.WithLabelValues(kind)}
}

// add counts the events of a write and their bytes.
func (c sentCounters) add(events, bytes int) {
	c.events.Add(float64(events))
	c.bytes.Add(float64(bytes))
}

// Swept counts n rows that a sweep has ended.
func (m *Metrics) Swept(rows string, n int64) { m.swept.WithLabelValues(rows).Add(float64(n)) }
