package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	m := &StreamMetrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_sequencer_leader", Help: "1 if this node leads the sequencer, else 0."}),
		sequenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_events_sequenced_total", Help: "Events that this node has given their place in the stream."}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mlsd_sequencer_wait_seconds", Help: "How long the oldest event of each step had waited for its place.",
			Buckets: buckets, NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets}),
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_events_told_total",
			Help: "Events of the stream that this node has read, once for all its subscriptions."}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mlsd_stream_lag_seconds",
			Help: "Age of the newest event of each read when it was handed to this node's subscriptions.", Buckets: buckets,
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets}),
		pages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_catch_up_pages_total", Help: "Pages that subscriptions behind the end of the stream have read."}),
		caughtUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_catch_up_events_total", Help: "Events in the pages that subscriptions behind the end of the " +
				"stream have read."}),
		behind: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_subscriptions_behind_total",
			Help: "Times that a subscription's buffer was full and it had to catch up."}),
	}
	reg.MustRegister(m.leader, m.sequenced, m.waited, m.read, m.lag, m.pages, m.caughtUp, m.behind)
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
