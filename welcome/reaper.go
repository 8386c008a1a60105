package welcome

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	looked place // of the last bytes that it looked at in this pass through all
}

// place is where Welcome bytes are in the order of their age.
type place struct {
	createdAt time.Time
	convo     uuid.UUID
	epoch     int64
}

// NewReaper returns a reaper. It calls count after every round.
func NewReaper(db *pgxpool.Pool, policy Policy, count func(Reaped)) *Reaper {
	return &Reaper{db: db, policy: policy, count: count}
}

// reapBatch bounds the rows of one statement, and so the time it holds their locks.
const reapBatch = 500

// looksPerRound bounds how many Welcome bytes a round looks at, in statements of reapBatch. Bytes
// stay for as long as a device can fetch them. So there can be many, and a round goes on where the
// last one ended.
const looksPerRound = 20

// eraseBytes looks at some Welcome bytes and erases those that are due.
//
//go:embed erasebytes.sql
var eraseBytes string

// RunOnce ends all leases and expires all Welcomes that are due, and looks for bytes to erase among
// looksPerRound*reapBatch. It works in batches of at most reapBatch rows, and is not for concurrent
// use. Each batch is a transaction of one statement, so that now() is the time of the statement.
// Unlike clock_timestamp(), now() can bound the scan of an index.
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
	done.Erased, err = r.eraseBytes(ctx)
	return done, err
}

// eraseBytes goes on with the pass through all Welcome bytes. After the last ones it begins anew in
// the next round.
func (r *Reaper) eraseBytes(ctx context.Context) (n int64, err error) {
	for range looksPerRound {
		var looked, erased int64
		var last place
		err := r.db.QueryRow(ctx, eraseBytes, reapBatch, keepConsumedBytes, r.looked.createdAt, r.looked.convo, r.looked.epoch).
			Scan(&looked, &erased, &last.createdAt, &last.convo, &last.epoch)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return n, fmt.Errorf("erase Welcome bytes: %w", err)
		}
		n += erased
		r.looked = last
		if looked < reapBatch {
			r.looked = place{}
			break
		}
	}
	return n, nil
}
