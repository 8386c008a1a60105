// Package metric makes and registers Prometheus metrics, each in one call.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Maker makes and registers metrics. If the name of a metric is in use, the program stops.
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

// Times returns a histogram with these buckets, in seconds, and with a native histogram beside
// them.
func (m Maker) Times(name, help string, buckets []float64) prometheus.Histogram {
	return m.factory.NewHistogram(times(name, help, buckets))
}

// TimesBy is Times, by the labels.
func (m Maker) TimesBy(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return m.factory.NewHistogramVec(times(name, help, buckets), labels)
}

// times has a native histogram beside the buckets. A native bucket is a tenth larger than the
// bucket before it, and a series has at most 160 native buckets.
func times(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1,
		NativeHistogramMaxBucketNumber: 160}
}

// Begin makes the series of these values of the only label before their first count, because a rate
// does not see the count with which a series begins.
func Begin[M any, T ~string](vec interface{ WithLabelValues(...string) M }, values ...T) {
	for _, v := range values {
		vec.WithLabelValues(string(v))
	}
}
