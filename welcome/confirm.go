package welcome

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/nsid"
)

// reasonConfirm is the method that confirms, as the audit log names it.
const reasonConfirm = "confirmWelcome"

// confirmDelivery makes the transition to consumed, or records that a join has failed.
//
//go:embed confirm.sql
var confirmDelivery string

// confirmation is what a recipient says of a delivery.
type confirmation struct {
	convo   uuid.UUID
	to      Device
	success bool
	details string // why the join failed
}

// Confirm ends a delivery and returns the Welcome's state. Success consumes the Welcome. A failure
// is recorded, and the Welcome can be fetched again. A confirmation that comes twice or late
// changes nothing. Confirmations that arrive at the same time share a transaction.
//
// Errors: ErrConvoNotFound, ErrNotMember, ErrNotFound (also if the Welcome was never fetched),
// batch.ErrOverloaded, batch.ErrClosed, idem.ErrUnknownOutcome, those of ctx and of the database.
func (s *Service) Confirm(ctx context.Context, convo uuid.UUID, to Device, success bool, details string) (State, error) {
	if details == "" {
		details = "not stated"
	}
	c := confirmation{convo, to, success, details}
	var result confirmed
	err := attempt(ctx, func(wait bool) (busy bool, err error) {
		if wait {
			result, err = s.confirmAlone(ctx, c)
		} else {
			result, err = s.confirms.Do(ctx, c)
		}
		return result.busy(), err
	})
	if err != nil {
		return "", fmt.Errorf("confirm the Welcome: %w", err)
	}
	return result.outcome()
}

// confirmTogether confirms in one transaction, each in a statement of its own: the audit log names
// one recipient at a time, and a statement sees what the one before it did to the same Welcome.
func (s *Service) confirmTogether(ctx context.Context, all []confirmation) ([]confirmed, error) {
	statements := &pgx.Batch{}
	results := make([]confirmed, len(all))
	for i, c := range all {
		c.queue(statements, &results[i])
	}
	err := s.transact(ctx, nsid.ConfirmWelcome, statements)
	return results, err
}

// confirmAlone confirms in a transaction that waits for the locks of the recipient's Welcomes.
func (s *Service) confirmAlone(ctx context.Context, c confirmation) (result confirmed, err error) {
	statements := s.begin(true, c.convo, c.to, reasonConfirm)
	c.queue(statements, &result)
	err = s.transact(ctx, nsid.ConfirmWelcome, statements)
	return result, err
}

func (c confirmation) queue(statements *pgx.Batch, result *confirmed) {
	statements.Queue(confirmDelivery,
		c.convo, c.to.DID, c.to.DeviceID, []byte(c.to.KeyPackageRef), reasonConfirm, c.success, c.details).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&result.member, &result.fetched, &result.before, &result.after)
		})
}

// confirmed is the row of confirmDelivery. Fields besides member are nil if the recipient has no
// Welcome.
type confirmed struct {
	member  *bool
	fetched *bool // at any time
	before  *State
	after   *State // nil: unchanged
}

func (c confirmed) busy() bool {
	return c.before != nil && *c.fetched && (*c.before == Available || *c.before == InFlight) && c.after == nil
}

func (c confirmed) outcome() (State, error) {
	if err := checkMember(c.member); err != nil {
		return "", err
	}
	switch {
	case c.before == nil, !*c.fetched:
		return "", ErrNotFound
	case c.after == nil:
		return *c.before, nil
	}
	return *c.after, nil
}
