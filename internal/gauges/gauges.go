// Package gauges tells Prometheus how much there is in the database: what counters of one process cannot know. It reads at scrape
// time, in one short read-only transaction, and at most once in a while, however often it is scraped.
//
// No figure costs more as a table grows. What is due, under way or newest is counted through the indexes that the workers have, up to
// a limit. Totals by state are counted in a sample of the table's pages and scaled up: exact for a table of up to samplePages pages (4
// MB), an estimate beyond.
package gauges

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	samplePages = 500
	pageSize    = 8192
	// countLimit is where counting of what is due ends: more is as bad.
	countLimit = 10000
	// readTimeout bounds one reading, the wait for a connection included.
	readTimeout = 5 * time.Second
	// overdueAfter is how long something may be due before it says that a worker does not work: many of its rounds.
	overdueAfter = 5 * time.Minute
	// keepExpired is idem's: a record is removed so long after its lifetime.
	keepExpired = 24 * time.Hour
)

// Collector is a prometheus.Collector of what is in the database.
type Collector struct {
	db    *pgxpool.Pool
	log   *slog.Logger
	every time.Duration
	up    *prometheus.Desc
	all   []figure

	mu   sync.Mutex // one reading at a time; guards what follows
	read time.Time  // when the last reading ended
	last []prometheus.Metric
}

// figure is one metric, and the query whose rows are its values: the labels, then the number.
type figure struct {
	desc   *prometheus.Desc
	labels int
	table  string   // to be sampled, or ""
	zero   []string // values of the one label that are told even if there are none
	sql    string
	args   []any
}

// New returns a collector that reads at most once every so often.
func New(db *pgxpool.Pool, log *slog.Logger, every time.Duration) *Collector {
	return &Collector{
		db: db, log: log, every: every, all: figures(),
		up: prometheus.NewDesc("mlsd_database_up", "1 if the database could be read at the last attempt, else 0.", nil, nil),
	}
}

// figures are what is read. Those with a table are estimates for a big one.
func figures() []figure {
	return []figure{
		{desc: desc("mlsd_reservations", "Reservations of work outside the database by state. processing is exact, the others may be estimates.", "state"), labels: 1,
			table: "idempotency_keys", zero: []string{"processing", "released", "completed"}, sql: `
			SELECT state, round(count(*) / $1::float8) FROM idempotency_keys TABLESAMPLE SYSTEM (100 * $1::float8)
			WHERE started_at IS NOT NULL AND state <> 'processing' GROUP BY state
			UNION ALL SELECT 'processing', count(*) FROM idempotency_keys WHERE state = 'processing'`},
		{desc: desc("mlsd_reservations_stuck", "Reservations in processing whose lease is over: their holder is dead, and nobody has taken them over."), sql: `
			SELECT count(*) FROM idempotency_keys WHERE state = 'processing' AND lease_expires_at <= now()`},
		{desc: desc("mlsd_reservation_oldest_lapsed_seconds", "How long ago the lease ended of the reservation that has been stuck the longest; 0 if there is none."), sql: `
			SELECT coalesce(extract(epoch FROM now() - min(lease_expires_at)), 0) FROM idempotency_keys
			WHERE state = 'processing' AND lease_expires_at <= now()`},
		{desc: desc("mlsd_records", "Idempotency records by method; an estimate if there are many.", "nsid"), labels: 1,
			table: "idempotency_keys", sql: `
			SELECT nsid, round(count(*) / $1::float8) FROM idempotency_keys TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY nsid`},
		{desc: desc("mlsd_records_expired", "Idempotency records whose lifetime is over and that are still kept, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM idempotency_keys WHERE expires_at <= now() LIMIT $1) expired`, args: []any{countLimit}},
		{desc: desc("mlsd_welcomes", "Welcomes by state. in_flight is exact, the others may be estimates.", "state"), labels: 1,
			table: "welcomes", zero: []string{"available", "in_flight", "consumed", "superseded", "expired"}, sql: `
			SELECT state, round(count(*) / $1::float8) FROM welcomes TABLESAMPLE SYSTEM (100 * $1::float8)
			WHERE state <> 'in_flight' GROUP BY state
			UNION ALL SELECT 'in_flight', count(*) FROM welcomes WHERE state = 'in_flight'`},
		{desc: desc("mlsd_welcome_oldest_in_flight_seconds", "How long ago the Welcome was fetched that has been in flight the longest; 0 if there is none."), sql: `
			SELECT coalesce((SELECT extract(epoch FROM now() - fetched_at) FROM welcomes
				WHERE state = 'in_flight' ORDER BY grace_expires_at LIMIT 1), 0)`},
		{desc: desc("mlsd_key_packages", "KeyPackages by state, the available ones without and with (last_resort) those of last resort; estimates if there are many.", "state"), labels: 1,
			table: "key_packages", zero: []string{"available", "last_resort", "claimed", "consumed", "orphaned", "expired"}, sql: `
			SELECT CASE WHEN state = 'available' AND last_resort THEN 'last_resort' ELSE state END AS state, round(count(*) / $1::float8)
			FROM key_packages TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY 1`},
		{desc: desc("mlsd_key_package_signals", "Stocks of KeyPackages by what their owners should know: low, last_resort, orphaned; estimates if there are many.", "kind"), labels: 1,
			table: "key_package_signals", zero: []string{"low", "last_resort", "orphaned"}, sql: `
			SELECT kind, round(count(*) / $1::float8) FROM key_package_signals TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY kind`},
		{desc: desc("mlsd_audit_rows_last_hour", "Rows of the audit log in the last hour by entity; an estimate from the newest 10000 if there are more.", "entity"), labels: 1, sql: `
			WITH newest AS MATERIALIZED (
				SELECT entity, at FROM audit_log WHERE at > now() - interval '1 hour' ORDER BY at DESC, id DESC LIMIT $1
			), span AS (
				SELECT CASE WHEN count(*) < $1 THEN 1 ELSE 3600 / greatest(extract(epoch FROM now() - min(at)), 1) END AS scale FROM newest
			)
			SELECT entity, round(count(*) * scale) FROM newest, span GROUP BY entity, scale`, args: []any{countLimit}},
		{desc: desc("mlsd_outbox_events", "Events that wait for their place in the stream, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM outbox ORDER BY id LIMIT $1) waiting`, args: []any{countLimit}},
		{desc: desc("mlsd_outbox_oldest_seconds", "Age of the oldest event that waits for its place in the stream; 0 if there is none."), sql: `
			SELECT coalesce((SELECT extract(epoch FROM now() - created_at) FROM outbox ORDER BY id LIMIT 1), 0)`},
		{desc: desc("mlsd_overdue_rows", "Rows that have been due for 5 minutes and more, up to 10000, by who should see to them.", "worker"), labels: 1, sql: `
			SELECT 'welcomes', count(*) FROM (SELECT FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'key_packages', count(*) FROM (SELECT FROM key_packages
				WHERE state = 'claimed' AND claim_expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'records', count(*) FROM (SELECT FROM idempotency_keys
				WHERE expires_at <= now() - $1::interval - $2::interval AND state <> 'processing' LIMIT $3) due
			UNION ALL SELECT 'used_tokens', count(*) FROM (SELECT FROM used_tokens
				WHERE expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'tickets', count(*) FROM (SELECT FROM subscription_tickets
				WHERE expires_at <= now() - $1::interval LIMIT $3) due`, args: []any{overdueAfter, keepExpired, countLimit}},
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	for _, f := range c.all {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector. If the database cannot be read there is nothing but mlsd_database_up: no figure is better
// than an old one.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.IsZero() || time.Since(c.read) >= c.every {
		c.renew()
	}
	for _, m := range c.last {
		ch <- m
	}
}

func (c *Collector) renew() {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	metrics, err := c.readAll(ctx)
	up := 1.0
	if err != nil {
		c.log.WarnContext(ctx, "the database's figures could not be read", "error", err)
		metrics, up = nil, 0
	}
	c.last = append(metrics, prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up))
	c.read = time.Now()
}

func (c *Collector) readAll(ctx context.Context) (metrics []prometheus.Metric, err error) {
	err = pgx.BeginTxFunc(ctx, c.db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true), set_config('statement_timeout', '2000', true)`)
		if err != nil {
			return err
		}
		for _, f := range c.all {
			found, err := f.read(ctx, tx)
			if err != nil {
				return fmt.Errorf("%v: %w", f.desc, err)
			}
			metrics = append(metrics, found...)
		}
		return nil
	})
	return metrics, err
}

// read runs the figure's query.
func (f figure) read(ctx context.Context, tx pgx.Tx) (metrics []prometheus.Metric, err error) {
	args := f.args
	if f.table != "" {
		share, err := share(ctx, tx, f.table)
		if err != nil {
			return nil, err
		}
		args = []any{share}
	}
	rows, err := tx.Query(ctx, f.sql, args...)
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, value := range f.zero {
		missing[value] = true
	}
	labels, n := make([]string, f.labels), 0.0
	into := []any{}
	for i := range labels {
		into = append(into, &labels[i])
	}
	_, err = pgx.ForEachRow(rows, append(into, &n), func() error {
		metrics = append(metrics, prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, n, labels...))
		for _, l := range labels {
			delete(missing, l)
		}
		return nil
	})
	for value := range missing {
		metrics = append(metrics, prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, 0, value))
	}
	return metrics, err
}

// share is how much of a table is to be sampled: all of a small one.
func share(ctx context.Context, tx pgx.Tx, table string) (share float64, err error) {
	var size int64
	err = tx.QueryRow(ctx, `SELECT pg_relation_size($1::text::regclass)`, table).Scan(&size)
	return min(1, samplePages*pageSize/float64(max(size, 1))), err
}
