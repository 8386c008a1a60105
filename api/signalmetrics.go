package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/events"
	"mlsd/internal/metric"
)

// SignalMetrics count signals. They implement events.SignalMetrics.
type SignalMetrics struct {
	carried   prometheus.Counter
	delivered prometheus.Counter
	dropped   *prometheus.CounterVec
}

// NewSignalMetrics registers the metrics with reg.
func NewSignalMetrics(reg prometheus.Registerer) *SignalMetrics {
	of := metric.For(reg)
	m := &SignalMetrics{
		carried: of.Counter("mlsd_signals_total",
			"Signals of this node's callers that it has passed on to all nodes."),
		delivered: of.Counter("mlsd_signal_deliveries_total",
			"Signals and moved cursors that this node has put into subscriptions' buffers."),
		dropped: of.Counters("mlsd_signals_dropped_total",
			"Signals that this node has dropped for all subscriptions or for one, by reason: busy (messages come "+
				"first), rate, convo (the limits of a node and of a convo), offline (no connection to the database), "+
				"long, behind (the subscription has much to read), failed.", "reason"),
	}
	metric.Begin(m.dropped, events.DropReasons()...)
	return m
}

// SignalsCarried implements events.SignalMetrics.
func (m *SignalMetrics) SignalsCarried(signals int) { m.carried.Add(float64(signals)) }

// SignalsDelivered implements events.SignalMetrics.
func (m *SignalMetrics) SignalsDelivered(subscriptions int) { m.delivered.Add(float64(subscriptions)) }

// SignalsDropped implements events.SignalMetrics.
func (m *SignalMetrics) SignalsDropped(reason string, n int) {
	m.dropped.WithLabelValues(reason).Add(float64(n))
}
