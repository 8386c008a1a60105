// Package tally keeps count of conflicts, which are requests that were refused because of another one and leave no row: by the hour,
// in the table conflict_counts, for all nodes together and across restarts.
//
// Counts are collected in memory and written in the background, never by a request. What could not be written is not written again,
// because the first attempt may have done it: a lost flush loses counts, and nothing counts twice.
package tally

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
)

const (
	// keep is how long the counts of an hour are kept.
	keep = 30 * 24 * time.Hour
	// deleteBatch bounds the rows that one flush deletes.
	deleteBatch = 1000
	// lastFlush bounds the flush of a server that shuts down.
	lastFlush = 5 * time.Second
)

// kind is what is counted by itself: an error of a method.
type kind struct{ name, nsid string }

// Tally counts. Methods are safe for concurrent use.
type Tally struct {
	db  *pgxpool.Pool
	log *slog.Logger

	mu     sync.Mutex
	counts map[kind]int64 // since the last flush; as many as there are errors and methods
}

// New returns a tally that writes to db.
func New(db *pgxpool.Pool, log *slog.Logger) *Tally {
	return &Tally{db: db, log: log, counts: map[kind]int64{}}
}

// Add counts one conflict: the error's name, and the method.
func (t *Tally) Add(name, nsid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[kind{name, nsid}]++
}

// Run flushes every interval until ctx ends, and then once more.
func (t *Tally) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			t.flush(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
	defer cancel()
	t.flush(ctx)
}

func (t *Tally) flush(ctx context.Context) {
	if err := t.Flush(ctx); err != nil {
		t.log.WarnContext(ctx, "conflicts since the last flush are not counted", "error", err)
	}
}

// Flush adds what was counted to the hour that the database's clock shows, and deletes counts of long ago.
func (t *Tally) Flush(ctx context.Context) error {
	t.mu.Lock()
	counts := t.counts
	t.counts = map[kind]int64{}
	t.mu.Unlock()

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
	if err := t.db.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("write the conflict counts: %w", err)
	}
	return nil
}

// columns returns the counts in one order, the same for every node, so that two flushes cannot wait for each other.
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
