package push

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/features/outgoing"
	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/ssrf"
	"mlsd/internal/tracing"
)

// provider makes one call. It returns nil if the call was delivered. A *callError says how the call
// failed. After any other error the call can be tried again.
type provider interface {
	call(ctx context.Context, j Job, t Target) error
}

// callError says how a call failed that was answered, or that must not be made.
type callError struct {
	outcome callOutcome
	reason  string
	after   time.Duration // delay that the receiver asks for; 0 means none
}

type callOutcome int

const (
	failing callOutcome = iota // the host cannot answer now
	early                      // the host works, and was called too often or too early
	gone                       // final: the target no longer exists
	refused                    // final: this call will never be accepted
)

func (e *callError) Error() string {
	switch e.outcome {
	case gone:
		return "the target is gone: " + e.reason
	case refused:
		return "refused: " + e.reason
	}
	return e.reason
}

// Final states of a job.
const (
	done = "done"
	dead = "dead"
)

// attempt makes one attempt at a job that this worker has taken.
func (w *Worker) attempt(ctx context.Context, j Job) {
	ctx, cancel := context.WithTimeout(ctx, j.place.Pool.Timeout+2*databaseTimeout)
	defer cancel()
	ctx, span := tracing.Follow(ctx, "push", w.cfg.Tracer.MakerOf(j.ID))
	defer span.End()
	span.Number("push.attempt", j.attempt)
	w.jobs.Make(ctx, outgoing.Attempt{
		Key: j.ID.String(), Number: j.attempt,
		Work: func(ctx context.Context) (outgoing.Ended, error) { return w.work(ctx, j) },
		Postpone: func(ctx context.Context, delay time.Duration, reason string) error {
			return w.postpone(ctx, j, delay, reason)
		},
	})
}

// work makes the call and returns its outcome.
func (w *Worker) work(ctx context.Context, j Job) (outgoing.Ended, error) {
	t, found, err := w.target(ctx, j)
	if err != nil {
		return outgoing.Ended{}, &outgoing.Retry{Cause: err}
	}
	if !found {
		return w.end(j, idem.Success, done, "the device is not registered any more"), nil
	}
	withheld, err := w.cfg.Withheld(ctx, []syntax.DID{j.DID})
	if err != nil {
		return outgoing.Ended{}, &outgoing.Retry{Cause: err}
	}
	if len(withheld) > 0 { // a client that returns reads what it has missed without a push
		return w.end(j, idem.Success, done, "the account may not use the service now"), nil
	}
	if j.attempt > maxAttempts { // its host was not called, or workers ended before they stored an outcome
		return w.end(j, idem.Failure, dead, cmp.Or(j.lastError, "tried too often")), nil
	}
	if t.State != Active {
		d := w.end(j, idem.Success, done, "the webhook has not answered its challenge")
		d.Effect = both(d.Effect, miss(j))
		return d, nil
	}
	if w.pools.of(t) != j.place.Call { // the call would not be counted
		return outgoing.Ended{}, &outgoing.Retry{Cause: errors.New("the device was registered anew")}
	}
	err = w.call(ctx, j, t)
	answer := &callError{}
	errors.As(err, &answer)
	switch {
	case err == nil:
		w.cfg.Metrics.PushAttempted(t.Kind, "delivered", "")
		return w.end(j, idem.Success, done, ""), nil
	case answer.outcome == gone:
		w.cfg.Metrics.PushAttempted(t.Kind, "gone", reasonOf(err))
		d := w.end(j, idem.Failure, done, err.Error())
		d.Effect = both(d.Effect, deleteTarget(t))
		return d, nil
	case answer.outcome == refused:
		w.cfg.Metrics.PushAttempted(t.Kind, "refused", reasonOf(err))
		return w.end(j, idem.Failure, dead, err.Error()), nil
	}
	w.cfg.Metrics.PushAttempted(t.Kind, "retry", reasonOf(err))
	if j.attempt >= maxAttempts && ctx.Err() == nil {
		return w.end(j, idem.Failure, dead, err.Error()), nil
	}
	return outgoing.Ended{}, &outgoing.Retry{Cause: err, After: afterOf(err)}
}

func (w *Worker) call(ctx context.Context, j Job, t Target) error {
	p := w.providers[t.Kind]
	if p == nil {
		return fmt.Errorf("this node cannot call %s", t.Kind)
	}
	limited, cancel := context.WithTimeout(ctx, j.place.Pool.Timeout)
	defer cancel()
	limited, span := tracing.StartCall(limited, "push call")
	defer span.End()
	span.Text("push.kind", string(t.Kind))
	err := p.call(limited, j, t)
	if err != nil {
		span.Failed("not delivered")
	}
	if ctx.Err() == nil {
		j.place.Report(resultOf(err))
	}
	return err
}

// afterOf returns the delay that the receiver asks for, or 0.
func afterOf(err error) time.Duration {
	if answer, ok := errors.AsType[*callError](err); ok {
		return answer.after
	}
	return 0
}

// resultOf returns what the outcome of a call says about the host. If a working server answers, the
// host works, and the answer concerns only the target.
func resultOf(err error) outgoing.Result {
	var answer *callError
	if err == nil || errors.As(err, &answer) && answer.outcome != failing {
		return outgoing.Succeeded
	}
	return outgoing.Failed
}

// Reasons why a call failed, in metrics. Their number is bounded, because a receiver cannot add
// reasons.
const (
	reasonStatus     = "status"     // the receiver answered with an error
	reasonForbidden  = "forbidden"  // the receiver's address may not be called
	reasonTimeout    = "timeout"    // the receiver did not answer in time
	reasonName       = "name"       // the receiver's name has no address
	reasonTLS        = "tls"        // the receiver's certificate is not valid
	reasonConnection = "connection" // the receiver cannot be reached
	reasonChallenge  = "challenge"  // the receiver answered a challenge with other bytes
	reasonOther      = "other"
)

// Reasons are all reasons why a call can fail.
func Reasons() []string {
	return []string{reasonStatus, reasonForbidden, reasonTimeout, reasonName, reasonTLS, reasonConnection, reasonChallenge,
		reasonOther}
}

// reasonOf returns the reason why a call failed with err.
func reasonOf(err error) string {
	var answer *callError
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var handshake tls.RecordHeaderError
	var timeout net.Error
	var connection *net.OpError
	switch {
	case errors.As(err, &answer) && answer.reason == ssrf.ErrForbidden.Error():
		return reasonForbidden
	case answer != nil:
		return reasonStatus
	case errors.Is(err, errWrongAnswer):
		return reasonChallenge
	case errors.As(err, &certificate), errors.As(err, &handshake):
		return reasonTLS
	case errors.As(err, &name):
		return reasonName
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return reasonTimeout
	case errors.As(err, &connection), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return reasonConnection
	}
	return reasonOther
}

// effect is a part of the transaction that ends a job.
type effect = func(ctx context.Context, tx pgx.Tx) error

func both(first, second effect) effect {
	return func(ctx context.Context, tx pgx.Tx) error {
		if err := first(ctx, tx); err != nil {
			return err
		}
		return second(ctx, tx)
	}
}

// end returns the effect that ends a job. The fence of the job's idempotency record also protects
// the row, so the effect does not compare the version.
func (w *Worker) end(j Job, outcome idem.Outcome, state, reason string) outgoing.Ended {
	effect := func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE push_jobs
			SET state = $3, ended_at = clock_timestamp(), last_error = coalesce(nullif($4, ''), last_error), version = version +
				1
			WHERE did = $1 AND id = $2 AND state = 'sending'`, j.DID, j.ID, state, outgoing.Clip(reason))
		if err != nil {
			return fmt.Errorf("end the job: %w", err)
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("end the job: it is not being sent")
		}
		return nil
	}
	return outgoing.Ended{Done: idem.Done{Outcome: outcome, Response: []byte(state), Effect: effect},
		Committed: func() { w.cfg.Metrics.PushEnded(state) }}
}

// deleteTarget deletes a target that no longer exists, unless the device has registered since. It
// keeps the target even if the device registered the same address again.
func deleteTarget(t Target) effect {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			DELETE FROM push_targets
			WHERE did = $1 AND device_id = $2 AND kind = $3 AND address = $4 AND topic = $5 AND registration = $6`,
			t.DID, t.DeviceID, t.Kind, t.Address, t.Topic, t.registration)
		return errs.Wrap(err, "delete the target")
	}
}

// postponeTimeout bounds postpone, which also runs while the server stops.
const postponeTimeout = 5 * time.Second

// postpone stores that a job is tried again after a delay. If the device has a newer job, the newer
// job supersedes this job, and takes over its delay and attempts. The receiver has not seen the
// newer job's key yet, so it cannot ignore the call as a repetition. postpone does not change a job
// that another worker has taken.
//
// A last attempt that is postponed has no outcome, for example because the node stops. It is made
// again. The newer job always has an attempt left: no call has had its key.
func (w *Worker) postpone(ctx context.Context, j Job, delay time.Duration, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postponeTimeout)
	defer cancel()
	attempts := j.attempt
	if attempts == maxAttempts {
		attempts--
	}
	superseded := false
	batch := &pgx.Batch{} // one transaction
	batch.Queue(`SELECT set_config('mlsd.reason', 'superseded', true)`)
	batch.Queue(`
		WITH newer AS (
			UPDATE push_jobs SET attempts = $8, next_attempt_at = clock_timestamp() + $6::interval, heard_by = NULL
			WHERE did = $1 AND device_id = $3 AND state = 'pending' AND $7 <> ''
				AND EXISTS (SELECT FROM push_jobs WHERE did = $1 AND id = $2 AND state = 'sending' AND version = $4)
			RETURNING id
		)
		UPDATE push_jobs
		SET state = CASE WHEN EXISTS (SELECT FROM newer) THEN 'done' ELSE state END,
			ended_at = CASE WHEN EXISTS (SELECT FROM newer) THEN clock_timestamp() END, attempts = $5,
			next_attempt_at = clock_timestamp() + $6::interval, last_error = coalesce(nullif($7, ''), last_error)
		WHERE did = $1 AND id = $2 AND state = 'sending' AND version = $4
		RETURNING state = 'done'`, j.DID, j.ID, j.DeviceID, j.version, attempts, delay, reason,
		min(attempts, maxAttempts-1)).
		Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&superseded}, func() error { return nil })
			return err
		})
	if err := w.cfg.DB.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("postpone the job: %w", err)
	}
	if superseded {
		w.cfg.Metrics.PushEnded("superseded")
	}
	return nil
}

// withoutURL removes the URL from an error of an HTTP client. The URL can contain a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
