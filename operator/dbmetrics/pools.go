package dbmetrics

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Pools is a prometheus.Collector of this node's connection pools.
type Pools struct {
	pools   map[string]*pgxpool.Pool // by the value of the label pool
	metrics []poolMetric
}

// poolMetric is one metric of a pool.
type poolMetric struct {
	desc  described
	kind  prometheus.ValueType
	value func(*pgxpool.Stat) float64
}

// NewPools returns a collector of pools, by their names.
func NewPools(pools map[string]*pgxpool.Pool) *Pools {
	return &Pools{pools: pools, metrics: []poolMetric{
		{desc("mlsd_pool_connections_max", "Connections to the database that a pool can have.", "pool"),
			prometheus.GaugeValue,
			func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) }},
		{desc("mlsd_pool_connections_acquired", "Connections of a pool that are in use.", "pool"), prometheus.GaugeValue,
			func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) }},
		{desc("mlsd_pool_connections_idle", "Connections of a pool that are open and not in use.", "pool"),
			prometheus.GaugeValue,
			func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) }},
		{desc("mlsd_pool_connections_opened_total", "Connections that a pool has opened.", "pool"), prometheus.CounterValue,
			func(s *pgxpool.Stat) float64 { return float64(s.NewConnsCount()) }},
		{desc("mlsd_pool_acquires_total", "Times that a connection of a pool was acquired.", "pool"), prometheus.CounterValue,
			func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) }},
		{desc("mlsd_pool_acquires_canceled_total", "Times that a wait for a connection of a pool was given up.", "pool"),
			prometheus.CounterValue,
			func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) }},
		{desc("mlsd_pool_waits_total", "Times that a connection was acquired after a wait, because none was idle.", "pool"),
			prometheus.CounterValue,
			func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) }},
		{desc("mlsd_pool_wait_seconds_total", "Time of the waits of mlsd_pool_waits_total.", "pool"), prometheus.CounterValue,
			func(s *pgxpool.Stat) float64 { return s.EmptyAcquireWaitTime().Seconds() }},
	}}
}

// Describe implements prometheus.Collector.
func (p *Pools) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range p.metrics {
		ch <- m.desc.Desc
	}
}

// Collect implements prometheus.Collector.
func (p *Pools) Collect(ch chan<- prometheus.Metric) {
	for name, pool := range p.pools {
		stat := pool.Stat()
		for _, m := range p.metrics {
			ch <- prometheus.MustNewConstMetric(m.desc.Desc, m.kind, m.value(stat), name)
		}
	}
}
