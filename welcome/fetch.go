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

// reasonFetch names the fetching method in the audit log.
const reasonFetch = "getWelcome"

// openLease changes the state from available to in_flight.
//
//go:embed openlease.sql
var openLease string

// Fetch gives the recipient its newest Welcome and opens a lease on it. Until the lease ends, a
// repeated Fetch gives the same bytes under the same lease, and does not restart the grace.
// Simultaneous fetches share a transaction.
//
// Errors: ErrConvoNotFound, ErrNotMember, ErrNotFound, ErrConsumed, batch.ErrOverloaded,
// batch.ErrClosed, idem.ErrUnknownOutcome, those of ctx and of the database.
func (s *Service) Fetch(ctx context.Context, convo uuid.UUID, to Device) (Delivery, error) {
	var f fetched
	d := fetch{convo, to}
	err := attempt(ctx, func(wait bool) (busy bool, err error) {
		if wait {
			f, err = s.fetchAlone(ctx, d)
		} else {
			f, err = s.fetches.Do(ctx, d)
		}
		return f.busy(), err
	})
	if err != nil {
		return Delivery{}, fmt.Errorf("fetch the Welcome: %w", err)
	}
	return f.delivery()
}

// fetch is a call of Fetch in a batch.
type fetch struct {
	convo uuid.UUID
	to    Device
}

// fetchTogether makes fetches in one transaction, each in its own statement, as confirmTogether
// does.
func (s *Service) fetchTogether(ctx context.Context, all []fetch) ([]fetched, error) {
	statements := &pgx.Batch{}
	results := make([]fetched, len(all))
	for i, d := range all {
		s.queueFetch(statements, d, &results[i])
	}
	err := s.transact(ctx, nsid.GetWelcome, statements)
	return results, err
}

// fetchAlone makes one fetch, in a transaction that waits for the locks of the recipient's
// Welcomes.
func (s *Service) fetchAlone(ctx context.Context, d fetch) (result fetched, err error) {
	statements := s.begin(d.convo, d.to, reasonFetch)
	s.queueFetch(statements, d, &result)
	err = s.transact(ctx, nsid.GetWelcome, statements)
	return result, err
}

func (s *Service) queueFetch(statements *pgx.Batch, d fetch, f *fetched) {
	statements.Queue(openLease, d.convo, d.to.DID, d.to.DeviceID, []byte(d.to.KeyPackageRef), reasonFetch, s.policy.Grace).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&f.member, &f.state, &f.leased, &f.ref, &f.epoch, &f.graceExpiresAt, &f.body, &f.request)
		})
}

// fetched is the row of openLease. All fields except member are nil if the recipient has no
// Welcome.
type fetched struct {
	member         *bool
	state          *State // state before the statement
	leased         *bool  // the Welcome has a lease after the statement
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
	return Delivery{Body: f.body, KeyPackageRef: f.ref, Epoch: *f.epoch, State: InFlight,
		GraceExpiresAt: *f.graceExpiresAt, Request: *f.request}, nil
}
