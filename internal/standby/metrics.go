package standby

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of one node. They exist without a standby too.
type metrics struct {
	reads            *prometheus.CounterVec
	standby, primary prometheus.Counter // of reads
	repeated         prometheus.Counter
	lag              prometheus.Gauge
	state            *prometheus.GaugeVec
}

func newMetrics() *metrics {
	m := &metrics{
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mlsd_reads_total", Help: "Reads that may use a standby, by the server that answered: standby, primary."},
			[]string{"source"}),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mlsd_reads_repeated_total", Help: "Reads that failed on the standby and were repeated on the primary."}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mlsd_standby_lag_bytes",
			Help: "WAL in bytes that the standby had not replayed at the last check. 0: it had replayed all in time."}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mlsd_standby", Help: "1 for the standby's state: none, used, behind, unreachable, refused."},
			[]string{"state"}),
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
