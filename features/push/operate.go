package push

import (
	"context"
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Errors of Retry and Drop.
var (
	ErrNoJob = errors.New("there is no such push job")
	ErrEnded = errors.New("the push job has ended")
)

// dropped is the error of a job that an operator has dropped.
const dropped = "dropped by an operator"

// Retry makes a job due now. A dead job stays as it is, but its device gets a new job, unless a job
// is waiting already. Retry returns the id of the job that is due. Errors: ErrNoJob; ErrEnded if
// the job is done.
func Retry(ctx context.Context, tx pgx.Tx, did syntax.DID, id uuid.UUID) (due uuid.UUID, err error) {
	j, err := lockJob(ctx, tx, did, id)
	switch {
	case err != nil:
		return due, err
	case j.state == done:
		return due, ErrEnded
	case j.state == dead:
		err = tx.QueryRow(ctx, `
			INSERT INTO push_jobs (did, id, device_id, reason, next_attempt_at, created_at)
			VALUES ($1, gen_random_uuid(), $2, $3, clock_timestamp(), clock_timestamp())
			ON CONFLICT (did, device_id) WHERE state = 'pending' DO UPDATE SET next_attempt_at = clock_timestamp(), heard_by =
				NULL
			RETURNING id`, did, j.device, j.reason).Scan(&due)
	default:
		due = id
		_, err = tx.Exec(ctx, `
			UPDATE push_jobs SET next_attempt_at = clock_timestamp(), heard_by = NULL WHERE did = $1 AND id = $2`, did, id)
	}
	return due, errs.Wrap(err, "make the job due")
}

// Drop makes a job end without a further call: the job is due now, and has no attempt left. A
// worker then ends it, after a call that is still running. The job gets a new version, so that
// workers that have read it before cannot take it. Errors: ErrNoJob, ErrEnded.
func Drop(ctx context.Context, tx pgx.Tx, did syntax.DID, id uuid.UUID) error {
	j, err := lockJob(ctx, tx, did, id)
	switch {
	case err != nil:
		return err
	case j.state == done, j.state == dead:
		return ErrEnded
	}
	_, err = tx.Exec(ctx, `
		UPDATE push_jobs
		SET attempts = greatest(attempts, $3), next_attempt_at = clock_timestamp(), last_error = $4, heard_by = NULL, version
			= version + 1
		WHERE did = $1 AND id = $2`, did, id, maxAttempts, dropped)
	return errs.Wrap(err, "drop the job")
}

// lockedJob is the part of a job that Retry and Drop use.
type lockedJob struct{ state, device, reason string }

// lockJob reads a job and locks its row. Error: ErrNoJob.
func lockJob(ctx context.Context, tx pgx.Tx, did syntax.DID, id uuid.UUID) (j lockedJob, err error) {
	err = tx.QueryRow(ctx, `SELECT state, device_id, reason FROM push_jobs WHERE did = $1 AND id = $2 FOR UPDATE`, did,
		id).
		Scan(&j.state, &j.device, &j.reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return j, ErrNoJob
	}
	return j, errs.Wrap(err, "find the job")
}

// ListedJob is a job as operators see it.
type ListedJob struct {
	ID          uuid.UUID
	DID         syntax.DID
	DeviceID    string
	Kind        string // kind of the device's target; "" if the device has no target
	Reason      string
	State       string
	Attempts    int
	NextAttempt time.Time
	LastError   string
	CreatedAt   time.Time
	EndedAt     *time.Time
	Deferred    bool // the device is connected, so it need not be called
}

// Waiting returns jobs that have not ended, after a place, in the order in which they are due.
func Waiting(ctx context.Context, tx pgx.Tx, after Place, limit int) ([]ListedJob, error) {
	return pgpool.Collect(ctx, tx, pgx.RowToStructByPos[ListedJob], `
		SELECT j.id, j.did, j.device_id, coalesce(t.kind, ''), j.reason, j.state, j.attempts, j.next_attempt_at,
			coalesce(j.last_error, ''),
			j.created_at, j.ended_at, j.heard_by IS NOT NULL
		FROM push_jobs j LEFT JOIN push_targets t ON t.did = j.did AND t.device_id = j.device_id
		WHERE j.state IN ('pending', 'sending') AND (j.next_attempt_at, j.id) > ($1, $2)
		ORDER BY j.next_attempt_at, j.id LIMIT $3`, after.At, after.ID, limit)
}

// newestEnded is how many ended jobs DeadLetters reads, because dead jobs have no index.
const newestEnded = 20000

// DeadLetters returns the newest jobs that ended without a delivery. It reads the newest 20,000
// jobs that ended before a place.
func DeadLetters(ctx context.Context, tx pgx.Tx, before Place, limit int) ([]ListedJob, error) {
	return pgpool.Collect(ctx, tx, pgx.RowToStructByPos[ListedJob], `
		SELECT j.id, j.did, j.device_id, coalesce(t.kind, ''), j.reason, j.state, j.attempts, j.next_attempt_at,
			coalesce(j.last_error, ''),
			j.created_at, j.ended_at, false
		FROM (
			SELECT * FROM push_jobs WHERE state IN ('done', 'dead') AND ended_at <= $1 ORDER BY ended_at DESC LIMIT $4
		) j
		LEFT JOIN push_targets t ON t.did = j.did AND t.device_id = j.device_id
		WHERE j.state = 'dead' AND (j.ended_at, j.id) < ($1, $2)
		ORDER BY j.ended_at DESC, j.id DESC LIMIT $3`, before.At, before.ID, limit, newestEnded)
}

// Place is a place in a list of jobs: the place of the last job that was seen.
type Place struct {
	At time.Time
	ID uuid.UUID
}
