package welcome

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Reaped counts what one round of the reaper did.
type Reaped struct {
	Released int64 // leases that ended; the Welcome can be fetched again
	Consumed int64 // leases that ended where silence counts as success
	Expired  int64 // Welcomes older than the retention
	Erased   int64 // Welcome bytes that no device can fetch any more
}

// Reaper ends leases whose grace is over, expires old Welcomes and erases bytes that are no longer
// needed. Any number of nodes can run one: each skips the rows that another has locked.
type Reaper struct {
	db     *pgxpool.Pool
	policy Policy
	count  func(Reaped)
}

// NewReaper returns a reaper. It calls count after every round.
func NewReaper(db *pgxpool.Pool, policy Policy, count func(Reaped)) *Reaper {
	return &Reaper{db: db, policy: policy, count: count}
}

// reapBatch bounds the rows of one statement, and so the time it holds their locks.
const reapBatch = 500

// RunOnce does all the work that is due, in batches of at most reapBatch rows. Each batch is a
// transaction of one statement, so that now() is the time of the statement. Unlike
// clock_timestamp(), now() can bound the scan of an index.
func (r *Reaper) RunOnce(ctx context.Context) (done Reaped, err error) {
	defer func() { r.count(done) }()
	consume := r.policy.OnExpiry == Consume
	steps := []struct {
		name  string
		count *int64
		sql   string
		args  []any
	}{
		{"consume unconfirmed Welcomes", &done.Consumed, `
			UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp(), silent = true, version = version + 1
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
