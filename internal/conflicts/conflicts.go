// Package conflicts keeps statistics of requests that were refused because of another request. Such
// a request leaves no row. The table conflict_counts has their numbers by the hour, for all nodes
// together and across restarts.
//
// Counts are collected in memory and written in the background, never by a request. If a write
// fails, its counts are dropped, because the database possibly has them. So a failed write can lose
// counts, and no conflict counts twice.
package conflicts

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/worker"
)

const (
	// keep is how long the counts of an hour are kept.
	keep = 30 * 24 * time.Hour
	// deleteBatch bounds the rows that one Flush deletes.
	deleteBatch = 1000
)

// kind is what has a count of its own: an error of a method.
type kind struct{ name, nsid string }

// Counter counts conflicts. Methods are safe for concurrent use.
type Counter struct {
	db  *pgxpool.Pool
	log *slog.Logger

	mu     sync.Mutex     // guards counts
	counts map[kind]int64 // since the last Flush; as many entries as there are errors and methods
}

// New returns a counter that writes to db.
func New(db *pgxpool.Pool, log *slog.Logger) *Counter {
	return &Counter{db: db, log: log, counts: map[kind]int64{}}
}

// Add counts one conflict: the error's name, and the method.
func (c *Counter) Add(name, nsid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[kind{name, nsid}]++
}

// Run flushes after every interval until ctx ends, and then once more.
func (c *Counter) Run(ctx context.Context, interval time.Duration) {
	worker.Every("conflict counter", interval, c.log, c.Flush, worker.AfterInterval(), worker.AtEnd(c.Flush)).Run(ctx)
}

// Flush adds the counts to the current hour of the database's clock, and deletes hours that are
// older than 30 days.
func (c *Counter) Flush(ctx context.Context) error {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[kind]int64{}
	c.mu.Unlock()

	b := &pgx.Batch{}
	if len(counts) > 0 {
		names, nsids, ns := columns(counts)
		b.Queue(`
			INSERT INTO conflict_counts AS c (hour, kind, nsid, n)
			SELECT date_trunc('hour', clock_timestamp(), 'UTC'), * FROM unnest($1::text[], $2::text[], $3::bigint[])
			ON CONFLICT (hour, kind, nsid) DO UPDATE SET n = c.n + excluded.n`, names, nsids, ns)
	}
	b.Queue(`
		DELETE FROM conflict_counts
		WHERE (hour, kind, nsid) IN (
			SELECT hour, kind, nsid FROM conflict_counts WHERE hour <= now() - $1::interval
			ORDER BY hour LIMIT $2 FOR UPDATE SKIP LOCKED)`, keep, deleteBatch)
	if err := c.db.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("conflicts since the last write are not counted: %w", err)
	}
	return nil
}

// columns returns the counts as arrays. Every node sorts them in the same order, so that two nodes
// cannot deadlock.
func columns(counts map[kind]int64) (names, nsids []string, ns []int64) {
	kinds := make([]kind, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b kind) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.nsid, b.nsid)) })
	for _, k := range kinds {
		names, nsids, ns = append(names, k.name), append(nsids, k.nsid), append(ns, counts[k])
	}
	return names, nsids, ns
}
