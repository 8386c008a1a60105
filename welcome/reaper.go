package welcome

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Reaped counts what one round of the reaper did.
type Reaped struct {
	Released int64 // leases over: fetchable again
	Consumed int64 // leases over where silence counts as success
	Expired  int64 // never asked for within the retention
	Erased   int64 // Welcome bytes that nobody can fetch any more
}

// Reaper does in the background what Fetch and Confirm would do to a Welcome whose time has come, so that its state is true
// for an observer too, and erases what is no longer needed. Any number of nodes may run one: they pass over each other's rows.
type Reaper struct {
	db     *pgxpool.Pool
	policy Policy
	log    *slog.Logger
	count  func(Reaped)
}

// NewReaper returns a reaper; count is told of every round.
func NewReaper(db *pgxpool.Pool, policy Policy, log *slog.Logger, count func(Reaped)) *Reaper {
	return &Reaper{db: db, policy: policy, log: log, count: count}
}

// Run works a round every interval until ctx ends. A round that fails is logged and tried again at the next.
func (r *Reaper) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		done, err := r.RunOnce(ctx)
		r.count(done)
		if err != nil && ctx.Err() == nil {
			r.log.ErrorContext(ctx, "the Welcome reaper failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reapBatch bounds the rows of one statement, and so the time it holds their locks.
const reapBatch = 500

// RunOnce does all the work that is due, in bounded batches. Each is a transaction of one statement, so that now() is when it begins:
// unlike clock_timestamp() it can bound the scan of an index.
func (r *Reaper) RunOnce(ctx context.Context) (done Reaped, err error) {
	consume := r.policy.OnExpiry == Consume
	steps := []struct {
		name  string
		count *int64
		sql   string
		args  []any
	}{
		{"consume silent deliveries", &done.Consumed, `
			UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp(), version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() AND last_error IS NULL AND $2
				ORDER BY grace_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{consume}},
		{"release leases", &done.Released, `
			UPDATE welcomes SET state = 'available', version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() AND (last_error IS NOT NULL OR NOT $2)
				ORDER BY grace_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{consume}},
		{"expire unfetched Welcomes", &done.Expired, `
			UPDATE welcomes SET state = 'expired', version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state IN ('available', 'in_flight') AND created_at <= now() - $2::interval
				ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{keepUnfetched}},
		{"erase Welcome bytes", &done.Erased, `
			DELETE FROM welcome_bodies
			WHERE (convo_id, epoch) IN (
				SELECT convo_id, epoch FROM welcome_bodies b
				WHERE b.created_at <= now() - $2::interval AND NOT EXISTS (
					SELECT FROM welcomes w
					WHERE w.convo_id = b.convo_id AND w.epoch = b.epoch
						AND (w.state IN ('available', 'in_flight') OR w.confirmed_at > now() - $2::interval))
				LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{keepConsumedBytes}},
	}
	for _, step := range steps {
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
