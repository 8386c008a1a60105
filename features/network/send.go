package network

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
	"mlsd/mls"
	"mlsd/welcome"
)

const (
	// firstDelay is the longest pause before a second attempt. The pause doubles with each attempt,
	// up to lastDelay.
	firstDelay = 2 * time.Second
	lastDelay  = time.Hour
	// databaseTimeout bounds each statement of a round.
	databaseTimeout = 5 * time.Second
	// takeOverAfterLease is how long after the lease of a job's record has expired another worker
	// takes the job.
	takeOverAfterLease = 5 * time.Second
)

// Kind is what a service tells another about an invitation.
type Kind string

// The kinds of deliveries.
const (
	Invited   Kind = "invited"
	Withdrawn Kind = "withdrawn" // the Welcome is void, because its device or the person was removed
	Ended     Kind = "ended"     // the convo was closed
)

// SenderMetrics counts deliveries. Methods are safe for concurrent use.
type SenderMetrics interface {
	InvitationSent(outcome string) // outcome of an attempt, or the end of a job: done, dead, retry
}

// SenderConfig configures a Sender. All fields without a default are required.
type SenderConfig struct {
	Network *Service
	DB      *pgxpool.Pool
	Writes  *idem.Store
	Metrics SenderMetrics
	Log     *slog.Logger
	Faults  *failpoint.Set // nil means none
	// Operation has the lifetimes of jobs' records and leases. The default is idem.Invitation.
	Operation idem.Operation
	// Jitter picks a delay up to longest. The default picks at random.
	Jitter func(longest time.Duration) time.Duration
	// Now is the clock for the pauses of services. The default is time.Now. Stored times are the
	// database's.
	Now func() time.Time
}

// Sender delivers invitations to the homes of people. Any number of nodes can run a Sender, because
// Senders skip rows that another has locked.
type Sender struct {
	cfg     SenderConfig
	homes   *homes
	freed   worker.Signal // a call has ended
	running sync.WaitGroup
}

// NewSender returns a sender.
func NewSender(c SenderConfig) *Sender {
	if c.Operation.NSID == "" {
		c.Operation = idem.Invitation
	}
	if c.Jitter == nil {
		c.Jitter = rand.N[time.Duration]
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Sender{cfg: c, homes: newHomes(c.Now, c.Jitter), freed: worker.NewSignal()}
}

// Run works until ctx ends. Then it waits for the running calls, which end with ctx. It looks for
// due jobs every interval, and whenever a call has ended.
func (w *Sender) Run(ctx context.Context, rounds *worker.Rounds, interval time.Duration) {
	defer w.running.Wait()
	// A call can last longer than the round that starts it, so the call has the context of Run.
	start := func(round context.Context) error { return w.round(round, ctx) }
	rounds.Every("invitation sender", interval, w.cfg.Log, start, worker.Wake(w.freed, 0)).Run(ctx)
}

// RunOnce starts the due jobs for which there is a place, and waits for their calls.
func (w *Sender) RunOnce(ctx context.Context) error {
	err := w.round(ctx, ctx)
	w.running.Wait()
	return err
}

// job is an invitation to be delivered, as due.sql reads it.
type job struct {
	ID          uuid.UUID
	Kind        Kind
	DID         syntax.DID
	Ref         mls.KeyPackageRef
	Service     syntax.DID
	DeviceID    string
	CipherSuite mls.CipherSuite
	ConvoID     uuid.UUID
	Inviter     syntax.DID
	Epoch       int64
	CreatedAt   time.Time
	Attempt     int
	Version     int64
}

// delivery is the input of deliverInvitation.
type delivery struct {
	Kind          Kind       `json:"kind"`
	ConvoID       string     `json:"convoId"`
	Inviter       syntax.DID `json:"inviter"`
	Recipient     syntax.DID `json:"recipient"`
	DeviceID      string     `json:"deviceId"`
	KeyPackageRef string     `json:"keyPackageRef"`
	CipherSuite   string     `json:"cipherSuite"`
	Epoch         int64      `json:"epoch"`
	ExpiresAt     string     `json:"expiresAt"`
}

// key is the key of the job's record. The two deliveries of a row are two jobs.
func (j job) key() string { return j.ID.String() + " " + string(j.Kind) }

func (j job) delivery() delivery {
	return delivery{
		Kind: j.Kind, ConvoID: j.ConvoID.String(), Inviter: j.Inviter, Recipient: j.DID, DeviceID: j.DeviceID,
		KeyPackageRef: j.Ref.String(), CipherSuite: j.CipherSuite.String(), Epoch: j.Epoch,
		ExpiresAt: j.CreatedAt.Add(welcome.KeepUnfetched).UTC().Format(time.RFC3339),
	}
}

// due reads due jobs.
//
//go:embed due.sql
var due string

// round starts the due jobs for which there is a place. The calls have the context calls.
func (w *Sender) round(ctx, calls context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	jobs, err := pgpool.Collect(ctx, w.cfg.DB, pgx.RowToStructByPos[job], due, perHome, w.homes.paused(), 2*allCalls,
		w.homes.proven())
	if err != nil {
		return fmt.Errorf("look for invitations: %w", err)
	}
	for _, j := range jobs {
		proven, ok := w.homes.acquire(j.Service)
		if !ok {
			continue
		}
		taken, err := w.take(ctx, j)
		if err != nil || !taken {
			w.homes.release(j.Service, proven, false, false)
			if err != nil {
				return err
			}
			continue
		}
		j.Attempt++
		j.Version++
		w.running.Go(func() {
			called, answered := w.attempt(calls, j)
			w.homes.release(j.Service, proven, called, answered)
			w.freed.Send()
		})
	}
	return nil
}

// take commits that this worker delivers the job, unless another worker has taken it.
func (w *Sender) take(ctx context.Context, j job) (taken bool, err error) {
	batch := &pgx.Batch{} // one transaction
	batch.Queue(`SELECT set_config('mlsd.reason', 'deliver an invitation', true)`)
	batch.Queue(`
		UPDATE sent_invitations
		SET state = 'sending', attempts = attempts + 1, next_attempt_at = now() + $3::interval, version = version + 1
		WHERE id = $1 AND version = $2 AND state IN ('pending', 'sending') AND next_attempt_at <= now()`,
		j.ID, j.Version, w.cfg.Operation.Lease+takeOverAfterLease).Exec(func(tag pgconn.CommandTag) error {
		taken = tag.RowsAffected() == 1
		return nil
	})
	if err := w.cfg.DB.SendBatch(ctx, batch).Close(); err != nil {
		return false, fmt.Errorf("take an invitation: %w", err)
	}
	return taken, nil
}

// retryError ends an attempt that is to be repeated.
type retryError struct{ cause error }

func (e *retryError) Error() string { return "to be tried again: " + e.cause.Error() }
func (e *retryError) Unwrap() error { return e.cause }

// attempt makes one attempt at a job that this worker has taken. It reports whether the service was
// called, and whether the service answered.
func (w *Sender) attempt(ctx context.Context, j job) (called, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+2*databaseTimeout)
	defer cancel()
	err := w.cfg.Faults.Hit(ctx, failpoint.BeforeReserve, idem.NSIDInvitation)
	if err == nil {
		_, err = w.cfg.Writes.Run(ctx, idem.Request{
			Caller: "mlsd", NSID: w.cfg.Operation.NSID, Key: j.key(), Life: w.cfg.Operation.Life,
			Lease: w.cfg.Operation.Lease, Input: idem.Content{{Name: "job", JSON: []byte(`"` + j.key() + `"`)}},
		}, func(ctx context.Context, _ int64) (done idem.Done, err error) {
			called = true
			done, answered, err = w.work(ctx, j)
			return done, err
		})
	}
	retry, isRetry := errors.AsType[*retryError](err)
	running, isRunning := errors.AsType[*idem.RunningError](err)
	switch {
	case err == nil:
		return called, answered
	case isRetry:
		w.cfg.Metrics.InvitationSent("retry")
		err = w.postpone(ctx, j, w.delay(j.Attempt, retry.cause), retry.cause.Error())
	case isRunning: // the job's last worker is late, but its lease has not expired
		err = w.postpone(ctx, j, running.Left, "")
	case errors.Is(err, idem.ErrLeaseLost):
		w.cfg.Log.WarnContext(ctx, "an invitation was taken over", "job", j.ID)
		return called, answered
	}
	if err != nil {
		w.cfg.Log.ErrorContext(ctx, "an invitation is left for another worker", "job", j.ID, "error", err)
	}
	return called, answered
}

// work makes the call and returns its outcome. answered reports whether the service works.
func (w *Sender) work(ctx context.Context, j job) (done idem.Done, answered bool, err error) {
	err = w.cfg.Network.call(ctx, j.Service, nsid.DeliverInvitation, j.delivery())
	busy, isBusy := errors.AsType[*busyError](err)
	switch {
	case err == nil:
		return w.end(j, idem.Success, "done", ""), true, nil
	case errors.As(err, new(*refusedError)):
		return w.end(j, idem.Failure, "dead", err.Error()), true, nil
	}
	return idem.Done{}, isBusy && busy.works, &retryError{err}
}

// end returns the effect that ends a job. The fence of the job's record also protects the row.
func (w *Sender) end(j job, outcome idem.Outcome, state, reason string) idem.Done {
	return idem.Done{Outcome: outcome, Response: []byte(state), Effect: func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE sent_invitations
			SET state = $3, ended_at = clock_timestamp(), last_error = coalesce(nullif($4, ''), last_error),
				version = version + 1
			WHERE id = $1 AND kind = $2 AND state = 'sending'`, j.ID, string(j.Kind), state, clip(reason))
		if err != nil {
			return fmt.Errorf("end the invitation: %w", err)
		}
		if tag.RowsAffected() == 0 { // the row has another kind, or the person was erased
			return nil
		}
		w.cfg.Metrics.InvitationSent(state)
		if j.Kind != Invited || outcome == idem.Success {
			return nil
		}
		return welcome.Refused(ctx, tx, j.ConvoID, j.Inviter, j.DID, j.Epoch)
	}}
}

// postpone stores that a job is tried again after a delay. It also runs while the server stops. It
// does not change a job that another worker has taken.
func (w *Sender) postpone(ctx context.Context, j job, delay time.Duration, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE sent_invitations
		SET next_attempt_at = clock_timestamp() + $3::interval, last_error = coalesce(nullif($4, ''), last_error)
		WHERE id = $1 AND state = 'sending' AND version = $2`,
		j.ID, j.Version, delay, clip(reason))
	return errs.Wrap(err, "postpone the invitation")
}

// delay is how long to wait after an attempt: back-off with full jitter, and at least the pause
// that the service asks for.
func (w *Sender) delay(attempt int, cause error) time.Duration {
	delay := w.cfg.Jitter(min(firstDelay<<min(attempt-1, 16), lastDelay))
	if busy, ok := errors.AsType[*busyError](cause); ok {
		delay = max(delay, busy.after)
	}
	return delay
}

// clip shortens another service's text, and makes it text that the database accepts.
func clip(reason string) string { return pgpool.Storable(reason[:min(len(reason), 200)]) }
