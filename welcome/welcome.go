package welcome

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/batch"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/ratelog"
	"mlsd/messages"
	"mlsd/mls"
)

// The states of a Welcome:
//
//	            Fetch                        Confirm(true)
//	available ───────────────▶ in_flight ───────────────────────▶ consumed
//	    ▲                        │  │  ▲
//	    │   grace over           │  │  └── Fetch again: same bytes, same lease
//	    └────────────────────────┘  └───── Confirm(false): stays in_flight, records the error
//
//	available | in_flight ──▶ superseded  a newer Welcome for the same device, a commit that removes
//	                                      the device, or the recipient has left or was removed
//	available | in_flight ──▶ expired     retention over
//
// With the policy Consume, a lease that ends without a reported failure leads to consumed.
//
// Every transition is an UPDATE of a locked row, and increases the row's version. Times are those
// of the database's clock. Each transition is written in one place: Fetch in openlease.sql, Confirm
// in confirm.sql, superseded in add.go, expired in sweep.go. The end of a lease is written in two:
// endLeases below, for one recipient who asks, and sweep.go, for all.

// State is the state of a Welcome on its way to one device.
type State string

const (
	Available  State = "available"
	InFlight   State = "in_flight"
	Consumed   State = "consumed"
	Superseded State = "superseded"
	Expired    State = "expired"
)

// How long the server keeps Welcomes.
const (
	keepConsumedBytes = 24 * time.Hour      // keeps the bytes, after the last confirmation
	KeepUnfetched     = 90 * 24 * time.Hour // keeps a Welcome that is not consumed
)

// Errors of Fetch and Confirm. ErrConvoNotFound and ErrNotMember are those of the message log.
var (
	ErrConvoNotFound = messages.ErrConvoNotFound
	ErrNotMember     = messages.ErrNotMember
	ErrNotFound      = errors.New("no Welcome for this device; if it is not in the group, it can join by an " +
		"external commit, or be invited again")
	ErrConsumed = errors.New("the Welcome has been consumed")
)

// ExpiryPolicy says what happens to a Welcome that is not confirmed within the grace.
type ExpiryPolicy string

const (
	Release ExpiryPolicy = "release" // the Welcome can be fetched again
	Consume ExpiryPolicy = "consume" // silence counts as success, unless a failure was reported
)

// Policy says how long a fetched Welcome waits for its confirmation, and what happens after that
// time.
type Policy struct {
	Grace    time.Duration
	OnExpiry ExpiryPolicy
}

// Device selects Welcomes of one member: all of them, those for one device, or those for one
// KeyPackage.
type Device struct {
	DID           syntax.DID
	DeviceID      string            // "" means any device
	KeyPackageRef mls.KeyPackageRef // nil means any KeyPackage
}

// Delivery is a fetched Welcome.
type Delivery struct {
	Body           []byte
	KeyPackageRef  mls.KeyPackageRef
	Epoch          int64 // the epoch into which the Welcome leads
	State          State
	GraceExpiresAt time.Time
	Request        bool // the recipient has not accepted the convo
}

// Bounds of the transactions that many fetches or many confirmations share. One fetch can read a
// Welcome of a megabyte.
const (
	fetchesPerBatch  = 16
	confirmsPerBatch = 64
	maxWaiting       = 4096 // fetches, and as many confirmations
	batchTimeout     = 4 * time.Second
)

// maxAttempts bounds the transactions of one call.
const maxAttempts = 4

var errBusy = fmt.Errorf("%w: other transactions keep changing the Welcome", messages.ErrBusy)

// Service delivers Welcomes to their recipients. It is safe for concurrent use.
//
// The statement of a transition chooses a Welcome, locks it and changes it. It skips a Welcome that
// another transaction has locked or changed: a statement that waits for a lock has made its choice
// from the rows as they were before the wait. A skipped Welcome counts as busy. So does a Welcome
// whose grace is over. In that case the next attempt first waits for the locks, and ends leases
// whose grace is over, in a separate statement.
type Service struct {
	db       *pgxpool.Pool
	policy   Policy
	count    func(Outcome)
	log      *slog.Logger
	faults   *failpoint.Set
	fetches  *batch.Batcher[fetch, fetched]
	confirms *batch.Batcher[confirmation, confirmed]
}

// New returns a Service on db, which the caller owns. The Service calls count for every
// confirmation. log must accept only a bounded number of lines: see [ratelog.New]. faults can be
// nil.
func New(db *pgxpool.Pool, policy Policy, count func(Outcome), log *slog.Logger, faults *failpoint.Set) *Service {
	s := &Service{db: db, policy: policy, count: count, log: ratelog.New(log), faults: faults}
	s.fetches = batch.New(batch.Limits{Batch: fetchesPerBatch, Queue: maxWaiting, Timeout: batchTimeout, Rests: true},
		s.fetchTogether)
	s.confirms = batch.New(batch.Limits{Batch: confirmsPerBatch, Queue: maxWaiting, Timeout: batchTimeout, Rests: true},
		s.confirmTogether)
	return s
}

// Close finishes the waiting fetches and confirmations, and refuses later ones. It returns when all
// are finished, or with ctx's error.
func (s *Service) Close(ctx context.Context) error {
	return errors.Join(s.fetches.Close(ctx), s.confirms.Close(ctx))
}

// attempt calls try until the Welcome is not busy and the outcome is known. The first try does not
// wait for locks. A repeated try is safe: a second fetch finds the lease of the first, and a second
// confirmation finds the state that the first has left.
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
		case n > 1: // the first try shares a transaction, so another caller can make it fail
			return err
		}
		if n == maxAttempts {
			return err
		}
	}
}

// endLeases waits for the locks of the recipient's Welcomes, and ends the leases whose grace is
// over. With $3, silence counts as success unless a failure was reported. A sweep does the same in
// bulk.
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

// checkMember returns an error unless the recipient is a member. member is nil if the recipient
// never was a member, and false if it was one.
func checkMember(member *bool) error {
	switch {
	case member == nil:
		return ErrConvoNotFound
	case !*member:
		return ErrNotMember
	}
	return nil
}
