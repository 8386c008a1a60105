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

	"mlsd/features/outgoing"
	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/internal/worker"
	"mlsd/mls"
	"mlsd/welcome"
)

const (
	// firstDelay is the longest pause before a second attempt. The pause doubles with each attempt,
	// up to lastDelay.
	firstDelay = 2 * time.Second
	lastDelay  = time.Hour

	// allCalls bounds the simultaneous calls of one node; perHome bounds those of one home. A home is
	// a registered domain, whose hosts can be many services.
	allCalls = 64
	perHome  = 4
	// A round looks at the homes of newestJobs jobs, at answering homes that have answered, and at
	// drawnHomes others.
	newestJobs, answering, drawnHomes = 128, 512, 128
	// databaseTimeout bounds each statement of a round.
	databaseTimeout = 5 * time.Second
	// takeOverAfterLease is how long after the lease of a job's record has expired another worker
	// takes the job.
	takeOverAfterLease = 5 * time.Second
)

// newPool returns the places for calls of homes. A home whose last call failed, or that was never
// called, has one call at a time, and all such homes have half the places. A home that does not
// answer is not called for a second. This time doubles with each failure, up to 5 minutes.
func newPool() *outgoing.Pool {
	return &outgoing.Pool{Name: "invitations", Size: allCalls, Unproven: allCalls / 2, Trial: 1, Failures: 1,
		FirstOpen: time.Second, LastOpen: 5 * time.Minute, Timeout: callTimeout}
}

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
	places  *outgoing.Places // by the home that is called
	pool    *outgoing.Pool
	jobs    *outgoing.Queue
	freed   worker.Trigger // a call has ended
	running sync.WaitGroup
}

// NewSender returns a sender.
func NewSender(c SenderConfig) *Sender {
	if c.Operation.NSID == "" {
		c.Operation = idem.Invitation
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Sender{cfg: c, places: outgoing.NewPlaces(c.Now, 0, perHome), pool: newPool(), freed: worker.NewTrigger(),
		jobs: &outgoing.Queue{Job: "an invitation", Writes: c.Writes, Operation: c.Operation, Log: c.Log, Faults: c.Faults,
			FirstDelay: firstDelay, LastDelay: lastDelay, Factor: 2, Jitter: c.Jitter}}
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
	Home        string // domain of the host of Service, as it was known when the row was written
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
	proven, paused := w.places.Hosts(w.pool)
	rand.Shuffle(len(proven), func(i, j int) { proven[i], proven[j] = proven[j], proven[i] })
	jobs, err := pgpool.Collect(ctx, w.cfg.DB, pgx.RowToStructByPos[job], due,
		perHome, paused, proven[:min(len(proven), answering)], 2*allCalls, newestJobs, drawnHomes, rand.Float64())
	if err != nil {
		return fmt.Errorf("look for invitations: %w", err)
	}
	for _, j := range jobs {
		place, verdict, _ := w.places.Acquire(outgoing.Call{Pool: w.pool, Host: j.Home})
		if verdict != outgoing.Admitted {
			continue
		}
		taken, err := w.take(ctx, j)
		if err != nil || !taken {
			place.Release()
			if err != nil {
				return err
			}
			continue
		}
		j.Attempt++
		j.Version++
		w.running.Go(func() {
			w.attempt(calls, j, place)
			place.Release()
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

// attempt makes one attempt at a job that this worker has taken.
func (w *Sender) attempt(ctx context.Context, j job, place outgoing.Place) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+2*databaseTimeout)
	defer cancel()
	w.jobs.Make(ctx, outgoing.Attempt{
		Key: j.key(), Number: j.Attempt,
		Work: func(ctx context.Context) (outgoing.Ended, error) { return w.work(ctx, j, place) },
		Postpone: func(ctx context.Context, delay time.Duration, reason string) error {
			return w.postpone(ctx, j, delay, reason)
		},
	})
}

// work makes the call and returns its outcome.
func (w *Sender) work(ctx context.Context, j job, place outgoing.Place) (outgoing.Ended, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	service, err := w.cfg.Network.find(ctx, j.Service)
	switch {
	case err == nil && service.Domain != j.Home:
		if err := w.move(ctx, j, service.Domain); err != nil {
			return outgoing.Ended{}, err
		}
		return outgoing.Ended{}, &outgoing.Retry{Cause: fmt.Errorf("%s is now at %s", j.Service, service.Domain)}
	case err == nil:
		err = w.cfg.Network.call(ctx, service, nsid.DeliverInvitation, j.delivery())
	}
	refused, isRefused := errors.AsType[*refusedError](err)
	busy, isBusy := errors.AsType[*busyError](err)
	switch {
	case err == nil || isRefused || isBusy && busy.works:
		place.Report(outgoing.Succeeded)
	case !errors.Is(err, serviceauth.ErrBusy): // else no host was asked
		place.Report(outgoing.Failed)
	}
	switch {
	case err == nil:
		return w.end(j, idem.Success, "done", ""), nil
	case isRefused:
		return w.end(j, idem.Failure, "dead", refused.Error()), nil
	}
	w.cfg.Metrics.InvitationSent("retry")
	retry := &outgoing.Retry{Cause: err}
	if isBusy {
		retry.After = busy.after
	}
	return outgoing.Ended{}, retry
}

// move makes a job one of the home at domain, because the service has another host than when the row
// was written. So the places and circuits of each home count all calls of its hosts.
func (w *Sender) move(ctx context.Context, j job, domain string) error {
	_, err := w.cfg.DB.Exec(ctx, `
		UPDATE sent_invitations SET domain = $2, lot = coalesce((
			SELECT lot FROM sent_invitations
			WHERE state IN ('pending', 'sending') AND coalesce(domain, service) = $2 LIMIT 1), lot)
		WHERE id = $1`, j.ID, domain)
	return errs.Wrap(err, "move an invitation to another home")
}

// end returns the effect that ends a job. The fence of the job's record also protects the row.
func (w *Sender) end(j job, outcome idem.Outcome, state, reason string) outgoing.Ended {
	ended := false
	effect := func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE sent_invitations
			SET state = $3, ended_at = clock_timestamp(), last_error = coalesce(nullif($4, ''), last_error),
				version = version + 1
			WHERE id = $1 AND kind = $2 AND state = 'sending'`, j.ID, string(j.Kind), state, outgoing.Clip(reason))
		if err != nil {
			return fmt.Errorf("end the invitation: %w", err)
		}
		if ended = tag.RowsAffected() > 0; !ended { // the row has another kind, or the person was erased
			return nil
		}
		if j.Kind != Invited || outcome == idem.Success {
			return nil
		}
		return welcome.QueueRefusal(ctx, tx, j.ConvoID, j.Inviter, j.DID, j.Epoch)
	}
	return outgoing.Ended{Done: idem.Done{Outcome: outcome, Response: []byte(state), Effect: effect}, Committed: func() {
		if ended {
			w.cfg.Metrics.InvitationSent(state)
		}
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
		j.ID, j.Version, delay, reason)
	return errs.Wrap(err, "postpone the invitation")
}
