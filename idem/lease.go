package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

// Outcome is the result of work outside the database. Each of the three outcomes is an answer,
// which a repeated request gets again.
type Outcome string

const (
	Success Outcome = "success"
	Partial Outcome = "partial" // part of the work was done, and that is final
	Failure Outcome = "failure" // the work was refused, and that is final
)

// ErrLeaseLost says that another attempt has taken over the reservation, or may have, because no
// heartbeat was written in time. It is the cause with which the context of the work ends.
var ErrLeaseLost = errors.New("the lease was lost: another has taken the work over")

// Done is the result of finished work outside the database.
type Done struct {
	Outcome  Outcome
	Response []byte
	// Effect changes the database according to the outcome, in the transaction that writes the
	// record. It can be nil.
	Effect func(ctx context.Context, tx pgx.Tx) error
}

// Work does something outside the database. ctx ends when the lease is lost. An error means that
// there is no final outcome, and the next attempt can begin at once. Each holder of the key has a
// higher fence than the previous holder, so that the outside system can refuse an old holder.
type Work func(ctx context.Context, fence int64) (Done, error)

// Run is Do for work outside the database. It reserves the key in a transaction of its own, extends
// the lease during the work, and records the outcome and its effects in one transaction. If the
// holder dies, another request takes over with a higher fence when the lease has expired. So the
// outside system can see the work twice, and must recognise it by the key. After a takeover,
// heartbeats and completions of the first holder match no row. Only the database's clock counts.
//
// Errors besides the work's own: *ConflictError, *RunningError, ErrLeaseLost, ErrUnknownOutcome,
// and errors of the database.
func (s *Store) Run(ctx context.Context, req Request, work Work) (Answer, error) {
	req.Lease = cmp.Or(req.Lease, s.lease)
	fence, first, err := s.acquire(ctx, req)
	if err != nil {
		return Answer{}, err
	}
	if first != nil {
		return *first, nil
	}
	if err := s.faults.Hit(ctx, failpoint.AfterReserve, req.NSID); err != nil {
		return Answer{}, err
	}
	working, end := s.keep(ctx, req, fence)
	done, err := work(working, fence)
	end()
	if errors.Is(context.Cause(working), ErrLeaseLost) {
		return Answer{}, ErrLeaseLost
	}
	if err != nil {
		return Answer{}, errors.Join(err, s.release(ctx, req, fence, err))
	}
	if err := s.faults.Hit(ctx, failpoint.AfterWork, req.NSID); err != nil {
		return Answer{}, err
	}
	answer, err := s.finish(ctx, req, fence, done)
	if err == nil {
		s.metrics.First(req.NSID)
	}
	return answer, err
}

// acquire reserves the key, or returns the first answer. It takes over a reservation that was
// released or whose lease has expired.
func (s *Store) acquire(ctx context.Context, req Request) (fence int64, first *Answer, err error) {
	tx, err := s.begin(ctx, req)
	if err != nil {
		return 0, nil, err
	}
	defer s.rollback(ctx, tx)
	hash := req.Input.Hash()
	tag, err := tx.Exec(ctx, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at,
			state, outcome, started_at, lease_expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, '', clock_timestamp(), clock_timestamp() + $7::interval,
			'processing', '', clock_timestamp(), clock_timestamp() + $8::interval)
		ON CONFLICT DO NOTHING`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), req.life(), req.Lease)
	if pgpool.LockTimeout(err) { // another transaction is reserving the key
		s.metrics.InProgress(req.NSID)
		return 0, nil, ErrInProgress
	}
	if err != nil {
		return 0, nil, fmt.Errorf("reserve the work: %w", err)
	}
	fence = 1
	if tag.RowsAffected() == 0 {
		if fence, err = s.takeOver(ctx, tx, req); err != nil {
			return 0, nil, err
		}
		if fence == 0 {
			answer, err := s.replay(ctx, tx, req)
			if errors.Is(err, ErrInProgress) {
				s.log.InfoContext(ctx, "lock_skipped_duplicate", "operation", req.NSID, "key", req.Key)
			}
			return 0, &answer, err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		// If the transaction was committed, its lease will expire, and no work was done.
		return 0, nil, fmt.Errorf("reserve the work: %w", err)
	}
	s.log.InfoContext(ctx, "lock_acquired", "operation", req.NSID, "key", req.Key, "fence", fence)
	return fence, nil, nil
}

// takeOver takes over a reservation that was released or whose lease has expired, and returns the
// new fence. It returns 0 if another request holds the reservation, or if there is an answer. It is
// one compare-and-set: of two simultaneous attempts, only one succeeds.
func (s *Store) takeOver(ctx context.Context, tx pgx.Tx, req Request) (fence int64, err error) {
	hash := req.Input.Hash()
	var expired bool
	err = tx.QueryRow(ctx, `
		WITH previous AS (
			SELECT state FROM idempotency_keys WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4)
				AND (request_hash = $5 OR expires_at <= clock_timestamp())
				AND (state = 'released' OR (state = 'processing' AND lease_expires_at <= clock_timestamp())
					OR (state = 'completed' AND expires_at <= clock_timestamp()))
			FOR UPDATE
		)
		UPDATE idempotency_keys k
		SET state = 'processing', outcome = '', response = '', fence = k.fence + 1, request_hash = $5, field_hashes = $6,
			started_at = clock_timestamp(), lease_expires_at = clock_timestamp() + $8::interval, completed_at = NULL,
			expires_at = clock_timestamp() + $7::interval,
			last_error = CASE previous.state WHEN 'processing' THEN 'its lease was over' ELSE k.last_error END
		FROM previous
		WHERE (k.caller_did, k.nsid, k.scope, k.key) = ($1, $2, $3, $4)
		RETURNING k.fence, previous.state = 'processing'`,
		req.Caller, req.NSID, req.Scope, req.Key, hash[:], req.Input.fieldHashes(), req.life(), req.Lease).Scan(&fence,
		&expired)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if pgpool.LockTimeout(err) {
		s.metrics.InProgress(req.NSID)
		return 0, ErrInProgress
	}
	if err != nil {
		return 0, fmt.Errorf("take the work over: %w", err)
	}
	if expired {
		s.metrics.TakenOver(req.NSID)
		s.log.WarnContext(ctx, "takeover", "operation", req.NSID, "key", req.Key, "fence", fence)
	}
	return fence, nil
}

// keep extends the lease three times in the length of a lease, until end is called. The context
// working ends with ErrLeaseLost when another attempt has taken over, or when no heartbeat was
// written for the length of a lease.
func (s *Store) keep(ctx context.Context, req Request, fence int64) (working context.Context, end func()) {
	lease := req.Lease
	working, cancel := context.WithCancelCause(ctx)
	beat, stop := s.beats(lease / 3)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer stop()
		extended := time.Now()
		for {
			select {
			case <-working.Done():
				return
			case <-beat:
			}
			ours, err := s.extend(working, req, fence)
			switch {
			case working.Err() != nil:
				return
			case err == nil && ours:
				extended = time.Now()
				s.log.DebugContext(ctx, "heartbeat_extended", "operation", req.NSID, "key", req.Key, "fence", fence)
				continue
			case err == nil:
				s.metrics.HeartbeatLost(req.NSID)
				s.log.WarnContext(ctx, "heartbeat lost: taken over", "operation", req.NSID, "key", req.Key, "fence", fence)
				cancel(ErrLeaseLost)
				return
			}
			s.metrics.HeartbeatLost(req.NSID)
			s.log.WarnContext(ctx, "heartbeat lost", "operation", req.NSID, "key", req.Key, "fence", fence, "error", err)
			if time.Since(extended) >= lease {
				cancel(ErrLeaseLost)
				return
			}
		}
	}()
	return working, func() {
		cancel(nil)
		<-ended
	}
}

// extend writes one heartbeat and reports whether this holder still has the reservation.
func (s *Store) extend(ctx context.Context, req Request, fence int64) (ours bool, err error) {
	if err := s.faults.Hit(ctx, failpoint.Heartbeat, req.NSID); err != nil {
		return false, err
	}
	tx, err := s.begin(ctx, req)
	if err != nil {
		return false, err
	}
	defer s.rollback(ctx, tx)
	tag, err := tx.Exec(ctx, `
		UPDATE idempotency_keys SET lease_expires_at = clock_timestamp() + $6::interval
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence = $5 AND state = 'processing'`,
		req.Caller, req.NSID, req.Scope, req.Key, fence, req.Lease)
	if err != nil {
		return false, fmt.Errorf("extend the lease: %w", err)
	}
	return tag.RowsAffected() == 1, tx.Commit(ctx)
}

// maxLastError is the longest text in last_error, in characters.
const maxLastError = 200

// release ends the reservation after an attempt without a final outcome, and records cause. It does
// nothing if another attempt has taken over.
func (s *Store) release(ctx context.Context, req Request, fence int64, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	tx, err := s.begin(ctx, req)
	if err != nil {
		return err
	}
	defer s.rollback(ctx, tx)
	_, err = tx.Exec(ctx, `
		UPDATE idempotency_keys
		SET state = 'released', outcome = 'failure', completed_at = clock_timestamp(), last_error = left($6, $7)
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence = $5 AND state = 'processing'`,
		req.Caller, req.NSID, req.Scope, req.Key, fence, pgpool.Storable(cause.Error()), maxLastError)
	if err != nil {
		return fmt.Errorf("release the reservation: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("release the reservation: %w", err)
	}
	s.log.InfoContext(ctx, "lock_released", "operation", req.NSID, "key", req.Key, "fence", fence, "outcome", "none")
	return nil
}

// finish records the outcome in one transaction with its effect, unless the holder with this fence
// has lost the lease.
func (s *Store) finish(ctx context.Context, req Request, fence int64, done Done) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	tx, err := s.begin(ctx, req)
	if err != nil {
		return Answer{}, err
	}
	defer s.rollback(ctx, tx)
	tag, err := tx.Exec(ctx, `
		UPDATE idempotency_keys SET state = 'completed', outcome = $6, response = $7, completed_at = clock_timestamp()
		WHERE (caller_did, nsid, scope, key) = ($1, $2, $3, $4) AND fence = $5 AND state = 'processing'`,
		req.Caller, req.NSID, req.Scope, req.Key, fence, done.Outcome, done.Response)
	if err != nil {
		return Answer{}, fmt.Errorf("complete the work: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return Answer{}, ErrLeaseLost
	}
	if done.Effect != nil {
		if err := done.Effect(ctx, tx); err != nil {
			return Answer{}, fmt.Errorf("complete the work: %w", err)
		}
	}
	if err := s.faults.Hit(ctx, failpoint.BeforeCommit, req.NSID); err != nil {
		return Answer{}, err
	}
	if err := s.commit(ctx, tx, req.NSID); err != nil {
		return s.resolveRun(ctx, req, fence, err)
	}
	s.log.InfoContext(ctx, "lock_released", "operation", req.NSID, "key", req.Key, "fence", fence, "outcome", done.Outcome)
	return Answer{Body: done.Response, Outcome: done.Outcome}, nil
}

// resolveRun finds out whether the COMMIT of a completion took effect.
func (s *Store) resolveRun(ctx context.Context, req Request, fence int64, cause error) (Answer, error) {
	rec, err := s.lookupCommitted(ctx, req)
	if err == nil && rec.state == completed && rec.fence == fence {
		return Answer{Body: rec.response, Outcome: rec.outcome}, nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return Answer{}, errors.Join(fmt.Errorf("%w: %w", ErrUnknownOutcome, cause), err)
}

// RunningSince returns when the running attempt began, or nil if no attempt is running.
func (s *Store) RunningSince(ctx context.Context, req Request) (*time.Time, error) {
	rec, err := s.lookupCommitted(ctx, req)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil // no running attempt is an ordinary answer
	case err != nil:
		return nil, fmt.Errorf("look for the work: %w", err)
	case rec.state != processing || rec.left == 0:
		return nil, nil //nolint:nilnil // as above
	}
	return rec.startedAt, nil
}
