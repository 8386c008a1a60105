package node

import (
	"cmp"
	"runtime"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mlsd/internal/tracing"
	"mlsd/operator/dbmetrics"
)

// registerNode registers the metrics of the process: what it was built from, whether it serves, and
// its connections to the database.
func (n *Node) registerNode() {
	b := built()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "mlsd_build_info", Help: "1. The labels say what the program was built from, and with which version of Go.",
		ConstLabels: prometheus.Labels{"version": b.version, "commit": cmp.Or(b.commit, "unknown"),
			"go_version": runtime.Version()},
	})
	build.Set(1)
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mlsd_ready", Help: "1 if the node serves requests, as /readyz says, else 0.",
	}, func() float64 {
		if n.fault() == "" {
			return 1
		}
		return 0
	})
	ahead := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mlsd_database_clock_ahead_seconds",
		Help: "How far the database's clock is ahead of this node's; negative if it is behind.",
	}, func() float64 { return n.schema.clock.Ahead().Seconds() })
	failing := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mlsd_writes_failing", Help: "1 if writes fail and none succeeds, for 10 to 20 seconds or longer, else 0.",
	}, n.writes.failing)
	n.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build, ready, ahead, failing, n.rounds,
		tracing.Metrics(n.tracer), dbmetrics.NewPools(map[string]*pgxpool.Pool{
			"requests": n.db.requests, "reserved": n.db.reserved, "maintenance": n.db.maintenance,
		}))
	n.db.reads.Register(n.reg)
}
