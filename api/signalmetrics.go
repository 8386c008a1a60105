package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/events"
)

// SignalMetrics count signals. They implement events.SignalMetrics.
type SignalMetrics struct {
	carried   prometheus.Counter
	delivered prometheus.Counter
	dropped   *prometheus.CounterVec
}

// NewSignalMetrics registers the metrics with reg.
func NewSignalMetrics(reg prometheus.Registerer) *SignalMetrics {
	m := &SignalMetrics{
		carried: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_signals_total", Help: "Signals of this node's callers that it has passed on to all nodes."}),
		delivered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_signal_deliveries_total",
			Help: "Signals and moved cursors that this node has put into subscriptions' buffers."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mlsd_signals_dropped_total",
			Help: "Signals that this node has dropped for all subscriptions or for one, by reason: busy (messages " +
				"come first), rate, convo (the limits of a node and of a convo), offline (no connection to the database), long, " +
				"behind (the subscription has much to read), failed."},
			[]string{"reason"}),
	}
	for _, reason := range events.DropReasons() {
		m.dropped.WithLabelValues(reason)
	}
	reg.MustRegister(m.carried, m.delivered, m.dropped)
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
