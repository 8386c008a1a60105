package standby

import (
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/metric"
)

// metrics are the metrics of one node. They exist even without a standby.
type metrics struct {
	reads            *prometheus.CounterVec
	standby, primary prometheus.Counter // number of reads
	repeated         prometheus.Counter
	lag              prometheus.Gauge
	state            *prometheus.GaugeVec
}

func newMetrics() *metrics {
	of := metric.For(nil) // Register registers them
	m := &metrics{
		reads: of.Counters("mlsd_reads_total",
			"Reads that may use a standby, by the server that answered: standby, primary.", "source"),
		repeated: of.Counter("mlsd_reads_repeated_total",
			"Reads that failed on the standby and were repeated on the primary."),
		lag: of.Gauge("mlsd_standby_lag_bytes",
			"WAL in bytes that the standby had not replayed at the last check. 0: it had replayed all in time."),
		state: of.Gauges("mlsd_standby",
			"1 for the standby's state: none, used, behind, unreachable, refused.", "state"),
	}
	m.standby, m.primary = m.reads.WithLabelValues("standby"), m.reads.WithLabelValues("primary")
	return m
}

func (m *metrics) register(reg prometheus.Registerer) {
	reg.MustRegister(m.reads, m.repeated, m.lag, m.state)
}

// show sets the gauges of the states.
func (m *metrics) show(now state) {
	for _, s := range []state{none, used, behind, unreachable, refused} {
		value := 0.0
		if s == now {
			value = 1
		}
		m.state.WithLabelValues(string(s)).Set(value)
	}
}
