package welcome

import (
	"context"
	_ "embed"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/nsid"
	"mlsd/outbox"
)

// reasonConfirm names the confirming method in the audit log.
const reasonConfirm = "confirmWelcome"

// maxDetails bounds the stored details of a failed join, in bytes.
const maxDetails = 1024

// Outcome says what a confirmation has done.
type Outcome string

const (
	Success   Outcome = "success"   // the device has joined, and the Welcome is now consumed
	Failure   Outcome = "failure"   // the device could not join; recorded once per lease
	Unchanged Outcome = "unchanged" // nothing has changed, because the confirmation was repeated or late
	Unknown   Outcome = "unknown"   // the caller has fetched no Welcome to confirm
)

// confirmDelivery changes the state to consumed, or records that a join has failed.
//
//go:embed confirm.sql
var confirmDelivery string

// confirmation is what a recipient reports of a delivery.
type confirmation struct {
	convo   uuid.UUID
	to      Device
	success bool
	details string // why the join failed
}

// Confirm ends a delivery. It returns the Welcome's state, and whether the recipient's membership
// is a request. If success is true, the Welcome is consumed. If not, the failure is recorded with
// its details, cut to 1,024 bytes, and the Welcome can be fetched again. A repeated or late
// confirmation changes nothing. Simultaneous confirmations share a transaction.
//
// Errors: ErrConvoNotFound, ErrNotMember, ErrNotFound (also if the Welcome was never fetched),
// batch.ErrOverloaded, batch.ErrClosed, idem.ErrUnknownOutcome, those of ctx and of the database.
func (s *Service) Confirm(ctx context.Context, convo uuid.UUID, to Device, success bool, details string) (state State,
	request bool, err error) {
	if details == "" {
		details = "not stated"
	}
	c := confirmation{convo, to, success, cut(details)}
	var result confirmed
	err = attempt(ctx, func(wait bool) (busy bool, err error) {
		if wait {
			result, err = s.confirmAlone(ctx, c)
		} else {
			result, err = s.confirms.Do(ctx, c)
		}
		return result.busy(), err
	})
	if err != nil {
		return "", false, fmt.Errorf("confirm the Welcome: %w", err)
	}
	state, outcome, err := result.state(success)
	s.count(outcome)
	if outcome == Failure { // the line names no DID and quotes no text of the client
		s.log.WarnContext(ctx, "a device could not join with its Welcome",
			"welcome", *result.id, "convo", convo, "attempts", *result.attempts, "failures", *result.failures)
	}
	return state, err == nil && *result.request, err
}

// cut returns the first maxDetails bytes of details. It does not cut a character in two.
func cut(details string) string {
	if len(details) <= maxDetails {
		return details
	}
	end := maxDetails
	for end > 0 && !utf8.RuneStart(details[end]) {
		end--
	}
	return details[:end]
}

// confirmTogether makes confirmations in one transaction, each in its own statement. The audit log
// names one recipient per statement, and a statement sees what an earlier one has changed in the
// same Welcome.
func (s *Service) confirmTogether(ctx context.Context, all []confirmation) ([]confirmed, error) {
	statements := &pgx.Batch{}
	results := make([]confirmed, len(all))
	for i, c := range all {
		c.queue(statements, &results[i])
	}
	err := s.transact(ctx, nsid.ConfirmWelcome, statements)
	return results, err
}

// confirmAlone makes one confirmation, in a transaction that waits for the locks of the recipient's
// Welcomes.
func (s *Service) confirmAlone(ctx context.Context, c confirmation) (result confirmed, err error) {
	statements := s.begin(c.convo, c.to, reasonConfirm)
	c.queue(statements, &result)
	err = s.transact(ctx, nsid.ConfirmWelcome, statements)
	return result, err
}

func (c confirmation) queue(statements *pgx.Batch, result *confirmed) {
	statements.Queue(confirmDelivery,
		c.convo, c.to.DID, c.to.DeviceID, []byte(c.to.KeyPackageRef), reasonConfirm, c.success, c.details, outbox.Arrival).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&result.member, &result.fetched, &result.before, &result.after, &result.failed, &result.id,
				&result.attempts, &result.failures, &result.request)
		})
}

// confirmed is the row of confirmDelivery. All fields except member and request are nil if the
// recipient has no Welcome. The last four fields are for after.
type confirmed struct {
	member   *bool
	request  *bool // the recipient has not accepted the convo
	fetched  *bool // the Welcome was fetched at some time
	before   *State
	after    *State // nil if nothing has changed
	failed   *bool  // the lease's first failure is recorded
	id       *uuid.UUID
	attempts *int
	failures *int
}

func (c confirmed) busy() bool {
	return c.before != nil && *c.fetched && (*c.before == Available || *c.before == InFlight) && c.after == nil
}

// state returns the Welcome's state after the confirmation, and what the confirmation did.
func (c confirmed) state(success bool) (State, Outcome, error) {
	if err := checkMember(c.member); err != nil {
		return "", Unknown, err
	}
	switch {
	case c.before == nil, !*c.fetched:
		return "", Unknown, ErrNotFound
	case c.after == nil:
		return *c.before, Unchanged, nil
	case success:
		return *c.after, Success, nil
	case *c.failed:
		return *c.after, Failure, nil
	}
	return *c.after, Unchanged, nil
}
