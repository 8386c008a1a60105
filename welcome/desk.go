package welcome

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/failpoint"
	"mlsd/internal/gather"
)

// Bounds of the transactions that confirm Welcomes.
const (
	confirmsOfCall  = 64
	confirmsWaiting = 4096
	confirmTimeout  = 4 * time.Second
)

// The methods whose faults a Desk has.
const (
	nsidGet     = "blue.catbird.mls.getWelcome"
	nsidConfirm = "blue.catbird.mls.confirmWelcome"
)

// ErrAside says that a Desk has not dealt with a Welcome, or cannot tell: Policy's Fetch or Confirm will, which may be done again.
var ErrAside = errors.New("not a plain delivery")

// Desk does what most deliveries come to: it fetches or confirms a current member's Welcome whose lease nobody else is changing, in one
// round trip and without waiting for anybody. Confirmations that come at the same time share a transaction. It is safe for concurrent use.
type Desk struct {
	db       *pgxpool.Pool
	policy   Policy
	faults   *failpoint.Set
	confirms *gather.Calls[confirmation, State]
}

// confirmation is what a recipient says of a delivery.
type confirmation struct {
	convo   uuid.UUID
	to      Device
	success bool
	details string
}

// aside is what is to be left to Confirm; no state of a Welcome.
const aside State = "aside"

// NewDesk returns a desk in db, which the caller owns. faults may be nil.
func NewDesk(db *pgxpool.Pool, policy Policy, faults *failpoint.Set) *Desk {
	d := &Desk{db: db, policy: policy, faults: faults}
	d.confirms = gather.New(gather.Limits{Batch: confirmsOfCall, Queue: confirmsWaiting, Timeout: confirmTimeout}, d.confirm)
	return d
}

// Close has what is waiting done and refuses what comes later. It returns once all is done, or ctx's error.
func (d *Desk) Close(ctx context.Context) error { return d.confirms.Close(ctx) }

// Confirm is Policy.Confirm for a caller who has not been found to be a member yet. Errors: ErrAside, those of package gather for what
// was not tried, ctx's.
func (d *Desk) Confirm(ctx context.Context, convo uuid.UUID, to Device, success bool, details string) (State, error) {
	state, err := d.confirms.Do(ctx, confirmation{convo, to, success, reason(details)})
	switch {
	case errors.Is(err, gather.ErrOverloaded), errors.Is(err, gather.ErrClosed), err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("confirm the Welcome: %w", err)
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrAside, err)
	case state == aside:
		return "", ErrAside
	}
	return state, nil
}

// chosen finds the recipient's Welcome that comes first in an order, as it was when the statement began. $1 is the convo, $2 the
// recipient, who must be a member, $3 and $4 what a Device says. In its transaction the audit log names the recipient, and the method.
const chosen = `
	WITH who AS MATERIALIZED (
		SELECT set_config('mlsd.caller', $2::text, true), set_config('mlsd.reason', $5::text, true)
	), chosen AS MATERIALIZED (
		SELECT w.*
		FROM who, welcomes w
		WHERE w.convo_id = $1 AND w.recipient_did = $2 AND ($3::text = '' OR w.device_id = $3)
			AND ($4::bytea IS NULL OR w.key_package_ref = $4)
			AND EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2 AND left_at IS NULL)
		ORDER BY `

// confirmChosen ends the delivery that the recipient speaks of, if it is still under way once its row is locked, or says how it has
// ended.
const confirmChosen = chosen + confirmOrder + ` LIMIT 1
	), held AS MATERIALIZED (
		SELECT w.id FROM chosen CROSS JOIN LATERAL (
			SELECT id FROM welcomes
			WHERE convo_id = $1 AND id = chosen.id AND chosen.state = 'in_flight' AND state = 'in_flight'
				AND grace_expires_at > clock_timestamp()
			FOR UPDATE SKIP LOCKED
		) w
	), written AS (
		UPDATE welcomes w SET state = CASE WHEN $6 THEN 'consumed' ELSE w.state END,
			confirmed_at = CASE WHEN $6 THEN clock_timestamp() END, last_error = CASE WHEN NOT $6 THEN $7::text END, version = w.version + 1
		FROM held WHERE w.convo_id = $1 AND w.id = held.id
		RETURNING w.state
	)
	SELECT coalesce(
		(SELECT state FROM written),
		(SELECT state FROM chosen WHERE attempts > 0 AND state IN ('consumed', 'superseded', 'expired')),
		'aside')`

// confirm writes the confirmations in one transaction and one round trip, each in a statement of its own: the audit log names one
// recipient at a time, and of several that speak of one Welcome each sees what the one before has made of it.
func (d *Desk) confirm(ctx context.Context, all []confirmation) (states []State, err error) {
	batch := &pgx.Batch{}
	states = make([]State, len(all))
	for i := range all {
		c := &all[i]
		batch.Queue(confirmChosen, c.convo, c.to.DID, c.to.DeviceID, []byte(c.to.KeyPackageRef), "confirmWelcome", c.success, c.details).
			QueryRow(func(row pgx.Row) error { return row.Scan(&states[i]) })
	}
	err = d.transact(ctx, nsidConfirm, func(to sender) error { return to.SendBatch(ctx, batch).Close() })
	return states, err
}

// fetchChosen opens a lease on the Welcome that the recipient is to get, or reads the one that is open. There is no row if it is neither.
const fetchChosen = chosen + fetchOrder + ` LIMIT 1
	), held AS MATERIALIZED (
		SELECT w.id FROM chosen CROSS JOIN LATERAL (
			SELECT id FROM welcomes
			WHERE convo_id = $1 AND id = chosen.id AND chosen.state = 'available' AND state = 'available'
			FOR UPDATE SKIP LOCKED
		) w
	), opened AS (
		UPDATE welcomes w SET state = 'in_flight', attempts = w.attempts + 1, fetched_at = clock_timestamp(), last_error = NULL,
			grace_expires_at = date_trunc('milliseconds', clock_timestamp() + $6::interval), version = w.version + 1
		FROM held WHERE w.convo_id = $1 AND w.id = held.id
		RETURNING w.key_package_ref, w.epoch, w.grace_expires_at
	), leased AS (
		SELECT * FROM opened
		UNION ALL
		SELECT key_package_ref, epoch, grace_expires_at FROM chosen WHERE state = 'in_flight' AND grace_expires_at > clock_timestamp()
	)
	SELECT key_package_ref, epoch, grace_expires_at, body FROM leased CROSS JOIN LATERAL (
		SELECT body FROM welcome_bodies WHERE convo_id = $1 AND epoch = leased.epoch LIMIT 1
	) b`

// Fetch is Policy.Fetch for a caller who has not been found to be a member yet. Errors: ErrAside, ctx's.
func (d *Desk) Fetch(ctx context.Context, convo uuid.UUID, to Device) (Delivery, error) {
	given := Delivery{State: InFlight}
	batch := &pgx.Batch{}
	batch.Queue(fetchChosen, convo, to.DID, to.DeviceID, []byte(to.KeyPackageRef), "getWelcome", d.policy.Grace).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&given.KeyPackageRef, &given.Epoch, &given.GraceExpiresAt, &given.Body)
		})
	err := d.transact(ctx, nsidGet, func(to sender) error { return to.SendBatch(ctx, batch).Close() })
	switch {
	case err != nil && ctx.Err() != nil:
		return Delivery{}, fmt.Errorf("fetch the Welcome: %w", ctx.Err())
	case err != nil:
		return Delivery{}, fmt.Errorf("%w: %w", ErrAside, err)
	}
	return given, nil
}

// sender is a pool, on which a batch is a transaction of its own, or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// transact sends a batch, in one round trip unless a fault is to happen before its COMMIT.
func (d *Desk) transact(ctx context.Context, nsid string, send func(to sender) error) (err error) {
	if d.faults.Armed(failpoint.BeforeCommit, nsid) {
		err = pgx.BeginFunc(ctx, d.db, func(tx pgx.Tx) error {
			if err := send(tx); err != nil {
				return err
			}
			return d.faults.Hit(ctx, failpoint.BeforeCommit, nsid)
		})
	} else {
		err = send(d.db)
	}
	if err != nil {
		return err
	}
	return d.faults.Hit(ctx, failpoint.AfterCommit, nsid)
}
