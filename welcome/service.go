package welcome

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/batch"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/ratelog"
	"mlsd/messages"
)

// Bounds of the transactions that many fetches or many confirmations share. A fetch can read a
// Welcome of a megabyte.
const (
	fetchesPerBatch  = 16
	confirmsPerBatch = 64
	maxWaiting       = 4096 // of each kind
	batchTimeout     = 4 * time.Second
)

// maxAttempts bounds the transactions of one call.
const maxAttempts = 4

var errBusy = fmt.Errorf("%w: other transactions keep changing the Welcome", messages.ErrBusy)

// Service delivers Welcomes to their recipients. It is safe for concurrent use.
//
// The statement of a transition chooses a Welcome, locks it and changes it. It skips a Welcome that
// another transaction has locked or changed, because a statement that waits for a lock has made its
// choice from the rows as they were before the wait. A skipped Welcome is busy, and so is one whose
// grace is over. The next attempt first waits for the locks and ends leases whose grace is over, in
// a statement of its own.
type Service struct {
	db       *pgxpool.Pool
	policy   Policy
	count    func(Outcome)
	log      *slog.Logger
	faults   *failpoint.Set
	fetches  *batch.Batcher[fetch, fetched]
	confirms *batch.Batcher[confirmation, confirmed]
}

// New returns a Service on db, which the caller owns. It calls count for every confirmation. log
// gets a bounded number of lines: see [ratelog.New]. faults can be nil.
func New(db *pgxpool.Pool, policy Policy, count func(Outcome), log *slog.Logger, faults *failpoint.Set) *Service {
	s := &Service{db: db, policy: policy, count: count, log: ratelog.New(log), faults: faults}
	s.fetches = batch.New(batch.Limits{Batch: fetchesPerBatch, Queue: maxWaiting, Timeout: batchTimeout, Rests: true},
		s.fetchTogether)
	s.confirms = batch.New(batch.Limits{Batch: confirmsPerBatch, Queue: maxWaiting, Timeout: batchTimeout, Rests: true},
		s.confirmTogether)
	return s
}

// Close finishes the fetches and confirmations that wait and refuses later ones. It returns when all
// are done, or with ctx's error.
func (s *Service) Close(ctx context.Context) error {
	return errors.Join(s.fetches.Close(ctx), s.confirms.Close(ctx))
}

// attempt calls try until the Welcome is not busy and the outcome is known. The first try does not
// wait for locks. Trying again is safe: a second fetch finds the lease of the first, and a second
// confirmation finds the state that the first left.
func attempt(ctx context.Context, try func(wait bool) (busy bool, err error)) error {
	for n := 1; ; n++ {
		busy, err := try(n > 1)
		switch {
		case err == nil && !busy:
			return nil
		case err == nil:
			err = errBusy
		case ctx.Err() != nil, errors.Is(err, batch.ErrOverloaded), errors.Is(err, batch.ErrClosed):
			return err
		case pgpool.ConnectionLost(err):
			err = fmt.Errorf("%w: %w", idem.ErrUnknownOutcome, err)
		case n > 1: // the first try shares a transaction, and can fail because of another caller
			return err
		}
		if n == maxAttempts {
			return err
		}
	}
}

// endLeases waits for the locks of the recipient's Welcomes and ends the leases whose grace is
// over. With $3, silence counts as success unless a failure was reported. The sweep does the same
// in bulk.
const endLeases = `
	WITH locked AS MATERIALIZED (
		SELECT id, state, grace_expires_at, $3 AND last_error IS NULL AS succeeded
		FROM welcomes
		WHERE convo_id = $1 AND recipient_did = $2 AND state IN ('available', 'in_flight')
		ORDER BY id FOR UPDATE
	)
	UPDATE welcomes w
	SET state = CASE WHEN succeeded THEN 'consumed' ELSE 'available' END,
		confirmed_at = CASE WHEN succeeded THEN clock_timestamp() END,
		silent = succeeded,
		version = w.version + 1
	FROM locked
	WHERE w.convo_id = $1 AND w.id = locked.id AND locked.state = 'in_flight' AND locked.grace_expires_at <=
		clock_timestamp()`

// begin returns the first statements of a transaction that waits for locks.
func (s *Service) begin(convo uuid.UUID, to Device, reason string) *pgx.Batch {
	statements := &pgx.Batch{}
	statements.Queue(`SELECT set_config('mlsd.caller', $1, true), set_config('mlsd.reason', $2, true)`, to.DID, reason)
	statements.Queue(endLeases, convo, to.DID, s.policy.OnExpiry == Consume)
	return statements
}

// transact runs statements in a transaction of the method nsid.
func (s *Service) transact(ctx context.Context, nsid string, statements *pgx.Batch) error {
	err := pgpool.SendTx(ctx, s.db, statements, s.faults.Hook(ctx, failpoint.BeforeCommit, nsid))
	if err != nil {
		return err
	}
	return s.faults.Hit(ctx, failpoint.AfterCommit, nsid)
}

// checkMember returns an error unless the recipient is a member. member is nil if it never was one,
// and false for a former member.
func checkMember(member *bool) error {
	switch {
	case member == nil:
		return ErrConvoNotFound
	case !*member:
		return ErrNotMember
	}
	return nil
}
