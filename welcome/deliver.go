package welcome

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Which of a recipient's Welcomes is fetched, and which one is confirmed.
const (
	fetchOrder   = `(w.state IN ('available', 'in_flight')) DESC, w.epoch DESC, w.created_at DESC`
	confirmOrder = `(w.state = 'in_flight') DESC, (w.state = 'available' AND w.attempts > 0) DESC, (w.state = 'consumed') DESC,
			(w.attempts > 0) DESC, w.epoch DESC, w.created_at DESC`
)

// Fetch hands the recipient its newest Welcome and opens a lease on it, or gives the same bytes under the same lease while one
// is open: fetching again neither restarts the grace nor uses anything up. The caller has checked that the recipient is a
// member. Errors: ErrNotFound, ErrConsumed.
func (p Policy) Fetch(ctx context.Context, tx pgx.Tx, convo uuid.UUID, to Device) (Delivery, error) {
	w, err := lock(ctx, tx, convo, to, fetchOrder)
	if err != nil {
		return Delivery{}, err
	}
	if err := p.expireLease(ctx, tx, convo, &w); err != nil {
		return Delivery{}, err
	}
	switch w.state {
	case Available:
		if err := p.openLease(ctx, tx, convo, &w); err != nil {
			return Delivery{}, err
		}
	case InFlight:
	case Consumed:
		return Delivery{}, ErrConsumed
	default:
		return Delivery{}, ErrNotFound
	}
	d := Delivery{KeyPackageRef: w.ref, Epoch: w.epoch, State: w.state, GraceExpiresAt: *w.graceExpiresAt}
	err = tx.QueryRow(ctx, `SELECT body FROM welcome_bodies WHERE convo_id = $1 AND epoch = $2`, convo, w.epoch).Scan(&d.Body)
	if err != nil {
		return Delivery{}, fmt.Errorf("read the Welcome of epoch %d: %w", w.epoch, err)
	}
	return d, nil
}

// Confirm ends a delivery. Success consumes the Welcome; a failure is recorded and leaves it to be fetched again. It may come
// twice, or late: what has ended stays as it is. A Welcome that was never fetched cannot be confirmed: ErrNotFound.
func (p Policy) Confirm(ctx context.Context, tx pgx.Tx, convo uuid.UUID, to Device, success bool, details string) (State, error) {
	w, err := lock(ctx, tx, convo, to, confirmOrder)
	if err != nil {
		return "", err
	}
	if err := p.expireLease(ctx, tx, convo, &w); err != nil {
		return "", err
	}
	switch {
	case !w.fetched:
		return "", ErrNotFound
	case w.state != InFlight && w.state != Available:
		return w.state, nil // a late word about what has ended
	case success:
		return Consumed, transition(ctx, tx, convo, w.id, `
			state = 'consumed', confirmed_at = clock_timestamp(), last_error = NULL`)
	}
	_, err = tx.Exec(ctx, `
		UPDATE welcomes SET last_error = $3, version = version + 1 WHERE convo_id = $1 AND id = $2`, convo, w.id, reason(details))
	if err != nil {
		return "", fmt.Errorf("record the failed join: %w", err)
	}
	return w.state, nil
}

// reason is why a join has failed, in the recipient's words.
func reason(details string) string {
	if details == "" {
		return "not stated"
	}
	return details
}

// openLease: available → in_flight.
func (p Policy) openLease(ctx context.Context, tx pgx.Tx, convo uuid.UUID, w *row) error {
	w.state = InFlight
	err := tx.QueryRow(ctx, `
		UPDATE welcomes SET state = 'in_flight', attempts = attempts + 1, fetched_at = clock_timestamp(), last_error = NULL,
			grace_expires_at = date_trunc('milliseconds', clock_timestamp() + $3::interval), version = version + 1
		WHERE convo_id = $1 AND id = $2
		RETURNING grace_expires_at`, convo, w.id, p.Grace).Scan(&w.graceExpiresAt)
	if err != nil {
		return fmt.Errorf("open a lease on the Welcome: %w", err)
	}
	return nil
}

// expireLease: in_flight → available, or consumed where silence counts as success, if the grace is over. The reaper does the
// same in bulk; whoever comes before it must not see anything else.
func (p Policy) expireLease(ctx context.Context, tx pgx.Tx, convo uuid.UUID, w *row) error {
	if w.state != InFlight || !w.graceOver {
		return nil
	}
	if p.OnExpiry == Consume && !w.failed {
		w.state = Consumed
		return transition(ctx, tx, convo, w.id, `state = 'consumed', confirmed_at = clock_timestamp()`)
	}
	w.state = Available
	return transition(ctx, tx, convo, w.id, `state = 'available'`)
}

// transition writes a new state to a row that the caller has locked. set is one of the constants of this file.
func transition(ctx context.Context, tx pgx.Tx, convo, id uuid.UUID, set string) error {
	_, err := tx.Exec(ctx, `UPDATE welcomes SET `+set+`, version = version + 1 WHERE convo_id = $1 AND id = $2`, convo, id)
	if err != nil {
		return fmt.Errorf("change the Welcome's state: %w", err)
	}
	return nil
}

// lock finds the recipient's Welcome that comes first in order, and locks it. It takes the locks first and chooses in a statement
// of its own: one that waited for a lock would choose by what it saw before.
func lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID, to Device, order string) (w row, err error) {
	_, err = tx.Exec(ctx, `
		SELECT FROM welcomes WHERE convo_id = $1 AND recipient_did = $2 AND state IN ('available', 'in_flight')
		ORDER BY id FOR UPDATE`, convo, to.DID)
	if err != nil {
		return w, fmt.Errorf("lock the recipient's Welcomes: %w", err)
	}
	err = tx.QueryRow(ctx, `
		SELECT w.id, w.key_package_ref, w.epoch, w.state, coalesce(w.grace_expires_at <= clock_timestamp(), false),
			w.attempts > 0, w.last_error IS NOT NULL, w.grace_expires_at
		FROM welcomes w
		WHERE w.convo_id = $1 AND w.recipient_did = $2 AND ($3 = '' OR w.device_id = $3)
			AND ($4::bytea IS NULL OR w.key_package_ref = $4)
		ORDER BY `+order+` LIMIT 1 FOR UPDATE`, convo, to.DID, to.DeviceID, []byte(to.KeyPackageRef)).
		Scan(&w.id, &w.ref, &w.epoch, &w.state, &w.graceOver, &w.fetched, &w.failed, &w.graceExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, ErrNotFound
	}
	if err != nil {
		return w, fmt.Errorf("find the Welcome: %w", err)
	}
	return w, nil
}
