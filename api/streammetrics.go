package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mlsd/events/signals"
	"mlsd/internal/metric"
)

// StreamMetrics count this node's work on the event stream. They implement events.Metrics.
type StreamMetrics struct {
	leader    prometheus.Gauge
	sequenced prometheus.Counter
	waited    prometheus.Histogram
	read      prometheus.Counter
	lag       prometheus.Histogram
	pages     prometheus.Counter
	caughtUp  prometheus.Counter
	behind    prometheus.Counter
}

// NewStreamMetrics registers the metrics with reg.
func NewStreamMetrics(reg prometheus.Registerer) *StreamMetrics {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	of := metric.For(reg)
	m := &StreamMetrics{
		leader: of.Gauge("mlsd_sequencer_leader", "1 if this node leads the sequencer, else 0."),
		sequenced: of.Counter("mlsd_events_sequenced_total",
			"Events that this node has given their place in the stream."),
		waited: of.Times("mlsd_sequencer_wait_seconds",
			"How long the oldest event of each step had waited for its place.", buckets),
		read: of.Counter("mlsd_events_told_total",
			"Events of the stream that this node has read, once for all its subscriptions."),
		lag: of.Times("mlsd_stream_lag_seconds",
			"Age of the newest event of each read when it was handed to this node's subscriptions.", buckets),
		pages: of.Counter("mlsd_catch_up_pages_total",
			"Pages that subscriptions behind the end of the stream have read."),
		caughtUp: of.Counter("mlsd_catch_up_events_total",
			"Events in the pages that subscriptions behind the end of the stream have read."),
		behind: of.Counter("mlsd_subscriptions_behind_total",
			"Times that a subscription's buffer was full and it had to catch up."),
	}
	return m
}

// Leading implements events.Metrics.
func (m *StreamMetrics) Leading(leads bool) {
	m.leader.Set(0)
	if leads {
		m.leader.Set(1)
	}
}

// Sequenced implements events.Metrics.
func (m *StreamMetrics) Sequenced(events int, oldest time.Duration) {
	m.sequenced.Add(float64(events))
	m.waited.Observe(oldest.Seconds())
}

// Published implements events.Metrics.
func (m *StreamMetrics) Published(events int, lag time.Duration) {
	m.read.Add(float64(events))
	if lag > 0 {
		m.lag.Observe(lag.Seconds())
	}
}

// CatchUp implements events.Metrics.
func (m *StreamMetrics) CatchUp(events int) {
	m.pages.Inc()
	m.caughtUp.Add(float64(events))
}

// FellBehind implements events.Metrics.
func (m *StreamMetrics) FellBehind() { m.behind.Inc() }

// SignalMetrics count signals. They implement signals.Metrics.
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
	metric.Begin(m.dropped, signals.DropReasons()...)
	return m
}

// Carried implements signals.Metrics.
func (m *SignalMetrics) Carried(signals int) { m.carried.Add(float64(signals)) }

// Delivered implements signals.Metrics.
func (m *SignalMetrics) Delivered(subscriptions int) { m.delivered.Add(float64(subscriptions)) }

// Dropped implements signals.Metrics.
func (m *SignalMetrics) Dropped(reason string, n int) {
	m.dropped.WithLabelValues(reason).Add(float64(n))
}
