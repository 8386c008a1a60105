package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/people/accounts"
)

// Metrics are those of one node. They exist without a relay too.
type Metrics struct {
	configured, following, connected, last prometheus.Gauge
	events, statuses                       *prometheus.CounterVec
	forgotten, gaps                        prometheus.Counter
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		configured: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_relay_configured", Help: "1 if MLSD_RELAY_URL is set."}),
		following: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_relay_following", Help: "1 if this node is the one that follows the relay."}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_relay_connected", Help: "1 if this node is connected to the relay."}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_relay_last_event_timestamp_seconds",
			Help: "When this node last received an event of the relay; 0: never."}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mlsd_relay_events_total",
			Help: "Events received by kind: account, identity, other, info, invalid, oversized."}, []string{"kind"}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mlsd_account_statuses_total",
			Help: "Statuses of accounts that were stored: active, deactivated, suspended, takendown, deleted."},
			[]string{"status"}),
		forgotten: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_account_keys_forgotten_total",
			Help: "Accounts whose keys were forgotten because their identity changed."}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_relay_gaps_total", Help: "Gaps in the events of the relay."}),
	}
	reg.MustRegister(m.configured, m.following, m.connected, m.last, m.events, m.statuses, m.forgotten, m.gaps)
	for _, kind := range []string{kindAccount, kindIdentity, kindOther, kindInfo, kindInvalid, kindOversized} {
		m.events.WithLabelValues(kind)
	}
	for _, status := range []accounts.Status{accounts.Active, accounts.Deactivated, accounts.Suspended, accounts.TakenDown,
		accounts.Deleted} {
		m.statuses.WithLabelValues(string(status))
	}
	return m
}

// received counts an event.
func (m *Metrics) received(kind string, at time.Time) {
	m.events.WithLabelValues(kind).Inc()
	m.last.Set(float64(at.UnixMilli()) / 1000)
}
