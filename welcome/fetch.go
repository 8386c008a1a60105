package welcome

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/nsid"
	"mlsd/mls"
)

// reasonFetch is the method that fetches, as the audit log names it.
const reasonFetch = "getWelcome"

// openLease makes the transition from available to in_flight.
//
//go:embed openlease.sql
var openLease string

// Fetch gives the recipient its newest Welcome and opens a lease on it. While the lease is open,
// Fetch gives the same bytes under the same lease, and does not restart the grace. Errors:
// ErrConvoNotFound, ErrNotMember, ErrNotFound, ErrConsumed, idem.ErrUnknownOutcome, those of ctx
// and of the database.
func (s *Service) Fetch(ctx context.Context, convo uuid.UUID, to Device) (Delivery, error) {
	var f fetched
	err := attempt(ctx, func(wait bool) (busy bool, err error) {
		f, err = s.fetchOnce(ctx, convo, to, wait)
		return f.busy(), err
	})
	if err != nil {
		return Delivery{}, fmt.Errorf("fetch the Welcome: %w", err)
	}
	return f.delivery()
}

func (s *Service) fetchOnce(ctx context.Context, convo uuid.UUID, to Device, wait bool) (f fetched, err error) {
	statements := s.begin(wait, convo, to, reasonFetch)
	statements.Queue(openLease, convo, to.DID, to.DeviceID, []byte(to.KeyPackageRef), reasonFetch, s.policy.Grace).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&f.member, &f.state, &f.leased, &f.ref, &f.epoch, &f.graceExpiresAt, &f.body, &f.request)
		})
	err = s.transact(ctx, nsid.GetWelcome, statements)
	return f, err
}

// fetched is the row of openLease. Fields besides member are nil if the recipient has no Welcome.
type fetched struct {
	member         *bool
	state          *State // before the statement
	leased         *bool  // after it
	ref            mls.KeyPackageRef
	epoch          *int64
	graceExpiresAt *time.Time
	body           []byte
	request        *bool // the recipient has not accepted the convo
}

func (f fetched) busy() bool {
	return f.state != nil && (*f.state == Available || *f.state == InFlight) && !*f.leased
}

func (f fetched) delivery() (Delivery, error) {
	if err := checkMember(f.member); err != nil {
		return Delivery{}, err
	}
	switch {
	case f.state == nil, *f.state == Superseded, *f.state == Expired:
		return Delivery{}, ErrNotFound
	case *f.state == Consumed:
		return Delivery{}, ErrConsumed
	case f.body == nil:
		return Delivery{}, fmt.Errorf("the Welcome of epoch %d has no bytes", *f.epoch)
	}
	return Delivery{Body: f.body, KeyPackageRef: f.ref, Epoch: *f.epoch, State: InFlight, GraceExpiresAt: *f.graceExpiresAt, Request: *f.request}, nil
}
