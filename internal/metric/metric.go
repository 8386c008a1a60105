// Package metric makes and registers Prometheus metrics, each in one call.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Maker makes metrics. Each is registered, or the program stops: its name was used before.
type Maker struct{ factory promauto.Factory }

// For returns a Maker that registers with reg.
func For(reg prometheus.Registerer) Maker { return Maker{promauto.With(reg)} }

// Counter returns a counter.
func (m Maker) Counter(name, help string) prometheus.Counter {
	return m.factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Counters returns counters by the labels.
func (m Maker) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return m.factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge returns a gauge.
func (m Maker) Gauge(name, help string) prometheus.Gauge {
	return m.factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// Gauges returns gauges by the labels.
func (m Maker) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return m.factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Times returns a histogram with these buckets, in seconds, and a native one beside them.
func (m Maker) Times(name, help string, buckets []float64) prometheus.Histogram {
	return m.factory.NewHistogram(times(name, help, buckets))
}

// TimesBy is Times, by the labels.
func (m Maker) TimesBy(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return m.factory.NewHistogramVec(times(name, help, buckets), labels)
}

// times has a native histogram beside the buckets: its buckets grow by a tenth, and a series has 160 of
// them at most.
func times(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1,
		NativeHistogramMaxBucketNumber: 160}
}

// Begin makes the series of these values of the only label before their first count: a rate does not
// see the count that a series begins with.
func Begin[M any, T ~string](vec interface{ WithLabelValues(...string) M }, values ...T) {
	for _, v := range values {
		vec.WithLabelValues(string(v))
	}
}
