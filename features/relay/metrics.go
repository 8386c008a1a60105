package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/metric"
	"mlsd/people/accounts"
)

// Metrics are the metrics of one node. They exist even without a relay.
type Metrics struct {
	configured, following, connected, last prometheus.Gauge
	events, statuses                       *prometheus.CounterVec
	forgotten, gaps                        prometheus.Counter
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	of := metric.For(reg)
	m := &Metrics{
		configured: of.Gauge("mlsd_relay_configured", "1 if MLSD_RELAY_URL is set."),
		following:  of.Gauge("mlsd_relay_following", "1 if this node is the one that follows the relay."),
		connected:  of.Gauge("mlsd_relay_connected", "1 if this node is connected to the relay."),
		last: of.Gauge("mlsd_relay_last_event_timestamp_seconds",
			"When this node last received an event of the relay; 0: never."),
		events: of.Counters("mlsd_relay_events_total",
			"Events received by kind: account, identity, other, info, invalid, oversized.", "kind"),
		statuses: of.Counters("mlsd_account_statuses_total",
			"Statuses of accounts that were stored: active, deactivated, suspended, takendown, deleted.", "status"),
		forgotten: of.Counter("mlsd_account_keys_forgotten_total",
			"Accounts whose keys were forgotten because their identity changed."),
		gaps: of.Counter("mlsd_relay_gaps_total", "Gaps in the events of the relay."),
	}
	metric.Begin(m.events, kindAccount, kindIdentity, kindOther, kindInfo, kindInvalid, kindOversized)
	metric.Begin(m.statuses, accounts.Active, accounts.Deactivated, accounts.Suspended, accounts.TakenDown,
		accounts.Deleted)
	return m
}

// received counts an event.
func (m *Metrics) received(kind string, at time.Time) {
	m.events.WithLabelValues(kind).Inc()
	m.last.Set(float64(at.UnixMilli()) / 1000)
}
