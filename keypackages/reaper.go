package keypackages

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/outbox"
)

// Reaped counts what one round of the Reaper did.
type Reaped struct {
	Expired  int64 // nobody claimed them in time
	Orphaned int64 // claims lapsed
	Deleted  int64 // KeyPackages that were spent long ago
}

// Reaper does in the background what time does to KeyPackages, so that their state is true for an observer too, tells owners
// of lapsed claims, and deletes what is no longer needed. Any number of nodes may run one: they pass over each other's rows.
type Reaper struct {
	db    *pgxpool.Pool
	log   *slog.Logger
	count func(Reaped)
}

// NewReaper returns a reaper; count is told of every round.
func NewReaper(db *pgxpool.Pool, log *slog.Logger, count func(Reaped)) *Reaper {
	return &Reaper{db: db, log: log, count: count}
}

// Run works a round every interval until ctx ends. A round that fails is logged and tried again at the next.
func (r *Reaper) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		done, err := r.RunOnce(ctx)
		r.count(done)
		if err != nil && ctx.Err() == nil {
			r.log.ErrorContext(ctx, "the KeyPackage reaper failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const (
	// reapBatch bounds the rows of one statement, and so the time it holds their locks.
	reapBatch = 500

	// keepSpent is how long a KeyPackage is kept once it is consumed, expired or orphaned. Until then a Welcome that names it
	// learns what has become of it, and one of the holder of a lapsed claim is still accepted.
	keepSpent = 30 * 24 * time.Hour
	// keepSignal is how long a signal is kept. What is still so is signalled anew.
	keepSignal = 30 * 24 * time.Hour
)

// RunOnce does all the work that is due, in bounded batches. Each statement is a transaction of its own, which makes now() the
// time: unlike clock_timestamp() it can be looked up in an index.
func (r *Reaper) RunOnce(ctx context.Context) (done Reaped, err error) {
	var signals int64
	for _, step := range []struct {
		name  string
		count *int64
		sql   string
		args  []any
	}{
		{"expire KeyPackages", &done.Expired, `
			UPDATE key_packages SET state = 'expired'
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state = 'available' AND claimed_by IS NULL AND not_after <= now()
				ORDER BY not_after LIMIT $1 FOR UPDATE SKIP LOCKED)`, nil},
		{"end lapsed claims", &done.Orphaned, `
			WITH lapsed AS (
				UPDATE key_packages SET state = 'orphaned'
				WHERE (did, ref) IN (
					SELECT did, ref FROM key_packages
					WHERE state = 'claimed' AND claim_expires_at <= now()
					ORDER BY claim_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
				RETURNING did, device_id, cipher_suite
			), told AS (
				INSERT INTO key_package_signals AS s (did, device_id, cipher_suite, kind, count, raised_at)
				SELECT did, device_id, cipher_suite, 'orphaned', count(*), clock_timestamp() FROM lapsed
				GROUP BY did, device_id, cipher_suite ORDER BY did, device_id, cipher_suite
				ON CONFLICT (did, device_id, cipher_suite, kind) DO UPDATE SET count = s.count + excluded.count
				RETURNING did, device_id, cipher_suite, kind
			), noted AS (
				SELECT told.*, (
					SELECT count(*) FROM key_packages
					WHERE did = told.did AND device_id = told.device_id AND cipher_suite = told.cipher_suite
						AND state = 'available' AND NOT last_resort AND not_after > now()
				) AS available
				FROM told
			), left_word AS (` + outbox.NoteSignals + `
			)
			SELECT FROM lapsed`, nil},
		{"delete spent KeyPackages", &done.Deleted, `
			DELETE FROM key_packages
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state IN ('consumed', 'expired', 'orphaned')
					AND coalesce(consumed_at, claim_expires_at, not_after) <= now() - $2::interval
				ORDER BY coalesce(consumed_at, claim_expires_at, not_after) LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{keepSpent}},
		{"forget old signals", &signals, `
			DELETE FROM key_package_signals
			WHERE (did, device_id, cipher_suite, kind) IN (
				SELECT did, device_id, cipher_suite, kind FROM key_package_signals
				WHERE raised_at <= now() - $2::interval
				ORDER BY raised_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{keepSignal}},
	} {
		for {
			tag, err := r.db.Exec(ctx, step.sql, append([]any{reapBatch}, step.args...)...)
			if err != nil {
				return done, fmt.Errorf("%s: %w", step.name, err)
			}
			*step.count += tag.RowsAffected()
			if tag.RowsAffected() < reapBatch {
				break
			}
		}
	}
	return done, nil
}
