// Package dbmetrics reads metrics from the database: how many rows wait, are stuck or are in which
// state. Counters of one process cannot know that. It reads when Prometheus scrapes, in one short
// read-only transaction, and at most once in an interval.
//
// No metric costs more as a table grows. Rows that are due, under way or new are counted through
// the indexes of the workers, up to a limit. Totals by state are counted in a sample of the table's
// pages and scaled up: they are exact for a table of up to 500 pages (4 MB), and an estimate for a
// larger one.
package dbmetrics

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"mlsd/idem"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// samplePages is how many pages of a table are counted, at most.
	samplePages = 500
	// pageSize is PostgreSQL's, in bytes.
	pageSize = 8192
	// countLimit is how many rows that are due are counted, at most.
	countLimit = 10000
	// newestEvents is how many events are searched for repeated messages. Each event costs a look-up.
	newestEvents = 2000
	// readTimeout bounds one reading, including the wait for a connection.
	readTimeout = 5 * time.Second
	// overdueAfter is how long a row may be due before its worker counts as failing. A worker has many
	// rounds in this time.
	overdueAfter = 5 * time.Minute
)

// Collector is a prometheus.Collector of what is in the database.
type Collector struct {
	db       *pgxpool.Pool
	log      *slog.Logger
	interval time.Duration
	now      func() time.Time
	up       *prometheus.Desc
	all      []metric

	mu   sync.Mutex // held during a reading; guards the fields below
	read time.Time  // when the last reading ended
	last []prometheus.Metric
}

// metric is one metric and its query. Each row of the query is a value: first the labels, then the
// number.
type metric struct {
	desc   described
	labels int
	table  string   // the table to sample, with $1 as the share of its pages; "" means none
	zero   []string // values of the only label that are reported as 0 if they have no row
	sql    string
	args   []any // of sql, if there is no table
}

// New returns a collector that reads the database at most once in each interval, by the clock now.
func New(db *pgxpool.Pool, log *slog.Logger, interval time.Duration, now func() time.Time) *Collector {
	return &Collector{
		db: db, log: log, interval: interval, now: now, all: metrics(),
		up: prometheus.NewDesc("mlsd_database_up", "1 if the database could be read at the last attempt, else 0.", nil, nil),
	}
}

// metrics returns what is read. A metric with a table is an estimate if the table is large.
func metrics() []metric {
	return []metric{
		{desc: desc("mlsd_reservations",
			"Reservations of work outside the database by state. processing is exact, the others may be estimates.", "state"),
			labels: 1,
			table:  "idempotency_keys", zero: []string{"processing", "released", "completed"}, sql: `
			SELECT state, round(count(*) / $1::float8) FROM idempotency_keys TABLESAMPLE SYSTEM (100 * $1::float8)
			WHERE started_at IS NOT NULL AND state <> 'processing' GROUP BY state
			UNION ALL SELECT 'processing', count(*) FROM idempotency_keys WHERE state = 'processing'`},
		{desc: desc("mlsd_reservations_stuck",
			"Reservations in processing whose lease is over: their holder is dead, and no other holder has taken them over."),
			sql: `
			SELECT count(*) FROM idempotency_keys WHERE state = 'processing' AND lease_expires_at <= now()`},
		{desc: desc("mlsd_reservation_oldest_lapsed_seconds",
			"Time since the lease of the longest stuck reservation ended; 0 if there is none."), sql: `
			SELECT coalesce(extract(epoch FROM now() - min(lease_expires_at)), 0) FROM idempotency_keys
			WHERE state = 'processing' AND lease_expires_at <= now()`},
		{desc: desc("mlsd_records", "Idempotency records by method; an estimate if there are many.", "nsid"), labels: 1,
			table: "idempotency_keys", sql: `
			SELECT nsid, round(count(*) / $1::float8) FROM idempotency_keys
			TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY nsid`},
		{desc: desc("mlsd_records_expired",
			"Idempotency records whose lifetime is over and that are still kept, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM idempotency_keys WHERE expires_at <= now() LIMIT $1) expired`,
			args: []any{countLimit}},
		{desc: desc("mlsd_welcomes", "Welcomes by state. in_flight is exact, the others may be estimates.", "state"),
			labels: 1,
			table:  "welcomes", zero: []string{"available", "in_flight", "consumed", "superseded", "expired"}, sql: `
			SELECT state, round(count(*) / $1::float8) FROM welcomes TABLESAMPLE SYSTEM (100 * $1::float8)
			WHERE state <> 'in_flight' GROUP BY state
			UNION ALL SELECT 'in_flight', count(*) FROM welcomes WHERE state = 'in_flight'`},
		{desc: desc("mlsd_welcome_oldest_in_flight_seconds",
			"Time since the fetch of the Welcome that has been in flight the longest; 0 if there is none."), sql: `
			SELECT coalesce((SELECT extract(epoch FROM now() - fetched_at) FROM welcomes
				WHERE state = 'in_flight' ORDER BY grace_expires_at LIMIT 1), 0)`},
		{desc: desc("mlsd_welcomes_many_attempts",
			"Welcomes that were fetched under 5 leases or more and can still be delivered, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM welcomes
				WHERE state IN ('available', 'in_flight') AND attempts >= 5 LIMIT $1) many`, args: []any{countLimit}},
		{desc: desc("mlsd_key_packages",
			"KeyPackages by state. Available ones of last resort count as last_resort only. Estimates if there are many.",
			"state"), labels: 1,
			table: "key_packages", zero: []string{"available", "last_resort", "claimed", "consumed", "orphaned", "expired"},
			sql: `
			SELECT CASE WHEN state = 'available' AND last_resort THEN 'last_resort' ELSE state END AS state, round(count(*) /
				$1::float8)
			FROM key_packages TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY 1`},
		{desc: desc("mlsd_key_package_signals",
			"Stocks of KeyPackages with a signal to their owners, by kind: low, last_resort, orphaned; estimates if there "+
				"are many.", "kind"), labels: 1,
			table: "key_package_signals", zero: []string{"low", "last_resort", "orphaned"}, sql: `
			SELECT kind, round(count(*) / $1::float8) FROM key_package_signals TABLESAMPLE SYSTEM (100 * $1::float8) GROUP BY
				kind`},
		{desc: desc("mlsd_audit_rows_last_hour",
			"Rows of the audit log in the last hour by entity; an estimate from the newest 10000 if there are more.", "entity"),
			labels: 1, sql: `
			WITH newest AS MATERIALIZED (
				SELECT entity, at FROM audit_log WHERE at > now() - interval '1 hour' ORDER BY at DESC, id DESC LIMIT $1
			), span AS (
				SELECT CASE WHEN count(*) < $1 THEN 1 ELSE 3600 / greatest(extract(epoch FROM now() - min(at)), 1) END AS scale FROM
					newest
			)
			SELECT entity, round(count(*) * scale) FROM newest, span GROUP BY entity, scale`, args: []any{countLimit}},
		// As in repeatedMessages of package invariants, which explains how equal messages are recognised.
		{desc: desc("mlsd_messages_repeated",
			"Application messages, among the newest 2000 events, with bytes that the same sender had sent to the convo "+
				"before. A client has lost its idempotency keys."), sql: `
			SELECT coalesce(sum(copies - 1), 0) FROM (
				SELECT count(*) AS copies
				FROM (SELECT kind, convo_id, seq FROM single_events WHERE row_seq > (SELECT head FROM stream) - $1) n
				CROSS JOIN LATERAL (
					SELECT sender_did, epoch, octet_length(body) AS length, substring(body FROM greatest(octet_length(body) - 31, 1))
						AS tag
					FROM messages WHERE convo_id = n.convo_id AND seq = n.seq LIMIT 1
				) m
				WHERE n.kind = 1
				GROUP BY n.convo_id, m.sender_did, m.epoch, m.length, m.tag HAVING count(*) > 1
			) repeated`, args: []any{newestEvents}},
		{desc: desc("mlsd_outbox_events", "Events that wait for their place in the stream, up to 10000."), sql: `
			SELECT least(coalesce(sum(coalesce(cardinality(seqs), 1)), 0), $1)
			FROM (SELECT seqs FROM outbox WHERE id > (SELECT floor FROM stream) ORDER BY id LIMIT $1) waiting`,
			args: []any{countLimit}},
		{desc: desc("mlsd_outbox_oldest_seconds",
			"Age of the oldest event that waits for its place in the stream; 0 if there is none."), sql: `
			SELECT coalesce((SELECT extract(epoch FROM now() - created_at) FROM outbox WHERE id > (SELECT floor FROM stream)
				ORDER BY id LIMIT 1), 0)`},
		{desc: desc("mlsd_erasures_running", "Erasures of accounts that have not ended."), sql: `
			SELECT count(*) FROM erasures WHERE state = 'running'`},
		{desc: desc("mlsd_erasure_oldest_batch_seconds",
			"Time since the last batch of a running erasure, for the one that has waited longest; 0 if none is running."), sql: `
			SELECT coalesce(extract(epoch FROM now() - min(coalesce(moved_at, begun_at))), 0) FROM erasures WHERE state =
				'running'`},
		{desc: desc("mlsd_abuse_reports_open", "Reports of abuse that no operator has closed, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM abuse_reports WHERE state = 'open' LIMIT $1) open`, args: []any{countLimit}},
		{desc: desc("mlsd_abuse_report_oldest_seconds",
			"Age of the oldest report of abuse that no operator has closed; 0 if there is none."), sql: `
			SELECT coalesce((SELECT extract(epoch FROM now() - reported_at) FROM abuse_reports WHERE state = 'open' ORDER BY id
				LIMIT 1), 0)`},
		{desc: desc("mlsd_attachment_uploads", "Attachments that are being uploaded or completed, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM attachments WHERE state IN ('uploading', 'checking') LIMIT $1) unfinished`,
			args: []any{countLimit}},
		{desc: desc("mlsd_attachment_deletions",
			"Deleted attachments whose objects are still to be deleted from the store, up to 10000."), sql: `
			SELECT count(*) FROM (SELECT FROM attachments WHERE state = 'deleted' LIMIT $1) waiting`, args: []any{countLimit}},
		{desc: desc("mlsd_attachment_deletion_bytes", "Bytes of the attachments of mlsd_attachment_deletions, as they "+
			"were announced."), sql: `
			SELECT coalesce(sum(size), 0) FROM (SELECT size FROM attachments WHERE state = 'deleted' LIMIT $1) waiting`,
			args: []any{countLimit}},
		{desc: desc("mlsd_attachment_deletion_oldest_seconds",
			"How long the first of mlsd_attachment_deletions has waited; 0 if there is none."), sql: `
			SELECT coalesce(extract(epoch FROM now() - min(touched_at)), 0)
			FROM (SELECT touched_at FROM attachments WHERE state = 'deleted' LIMIT $1) waiting`, args: []any{countLimit}},
		{desc: desc("mlsd_wal_archive_failing",
			"1 if PostgreSQL failed to archive a part of its WAL since it last archived one, else 0."), sql: `
			SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false)::int FROM pg_stat_archiver`},
		{desc: desc("mlsd_transaction_id_age",
			"Transaction ids since the oldest of this database that is not frozen. At 2,147 million PostgreSQL stops all "+
				"writes."), sql: `
			SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()`},
		{desc: desc("mlsd_overdue_rows",
			"Rows that have been due for 5 minutes and more, up to 10000, by the worker that should handle them.",
			"worker"), labels: 1,
			sql: `
			SELECT 'welcomes', count(*) FROM (SELECT FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'key_packages', count(*) FROM (SELECT FROM key_packages
				WHERE state = 'claimed' AND claim_expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'records', count(*) FROM (SELECT FROM idempotency_keys
				WHERE expires_at <= now() - $1::interval - $2::interval AND state <> 'processing' LIMIT $3) due
			UNION ALL SELECT 'used_tokens', count(*) FROM (SELECT FROM used_tokens
				WHERE expires_at <= now() - $1::interval LIMIT $3) due
			UNION ALL SELECT 'tickets', count(*) FROM (SELECT FROM subscription_tickets
				WHERE expires_at <= now() - $1::interval LIMIT $3) due`, args: []any{overdueAfter, idem.KeepExpired, countLimit}},
	}
}

// described is a metric's description, and its name for errors.
type described struct {
	*prometheus.Desc
	name string
}

func desc(name, help string, labels ...string) described {
	return described{prometheus.NewDesc(name, help, labels, nil), name}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	for _, m := range c.all {
		ch <- m.desc.Desc
	}
}

// Collect implements prometheus.Collector. If the database cannot be read, it reports
// mlsd_database_up only, and no old values.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.IsZero() || c.now().Sub(c.read) >= c.interval {
		c.readDatabase()
	}
	for _, m := range c.last {
		ch <- m
	}
}

func (c *Collector) readDatabase() {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	metrics, err := c.readAll(ctx)
	up := 1.0
	if err != nil {
		c.log.WarnContext(ctx, "the database's metrics could not be read", "error", err)
		metrics, up = nil, 0
	}
	c.last = append(metrics, prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up))
	c.read = c.now()
}

// settings are the settings of one reading. A reading sees the rows of all callers, has 2 s for
// each statement, and reads tables by an index or in a sample. By default the planner would scan a
// whole table if it expects most of the rows to be due. A scan that is ruled out counts as so
// expensive that PostgreSQL would compile the statement, for half a second.
const settings = `
	SELECT set_config('mlsd.maintenance', 'on', true), set_config('statement_timeout', '2000', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off',
			true)`

func (c *Collector) readAll(ctx context.Context) (metrics []prometheus.Metric, err error) {
	err = pgx.BeginTxFunc(ctx, c.db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, settings)
		if err != nil {
			return err
		}
		for _, m := range c.all {
			found, err := m.read(ctx, tx)
			if err != nil {
				return fmt.Errorf("%s: %w", m.desc.name, err)
			}
			metrics = append(metrics, found...)
		}
		return nil
	})
	return metrics, err
}

// read runs the query.
func (m metric) read(ctx context.Context, tx pgx.Tx) (found []prometheus.Metric, err error) {
	args := m.args
	if m.table != "" {
		share, err := sampleShare(ctx, tx, m.table)
		if err != nil {
			return nil, err
		}
		args = []any{share}
	}
	rows, err := tx.Query(ctx, m.sql, args...)
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, value := range m.zero {
		missing[value] = true
	}
	labels, n := make([]string, m.labels), 0.0
	into := []any{}
	for i := range labels {
		into = append(into, &labels[i])
	}
	_, err = pgx.ForEachRow(rows, append(into, &n), func() error {
		found = append(found, prometheus.MustNewConstMetric(m.desc.Desc, prometheus.GaugeValue, n, labels...))
		for _, l := range labels {
			delete(missing, l)
		}
		return nil
	})
	for value := range missing {
		found = append(found, prometheus.MustNewConstMetric(m.desc.Desc, prometheus.GaugeValue, 0, value))
	}
	return found, err
}

// sampleShare returns which part of a table's pages to count: 1 for a small table.
func sampleShare(ctx context.Context, tx pgx.Tx, table string) (share float64, err error) {
	var size int64
	err = tx.QueryRow(ctx, `SELECT pg_relation_size($1::text::regclass)`, table).Scan(&size)
	return min(1, samplePages*pageSize/float64(max(size, 1))), err
}
