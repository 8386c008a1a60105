package network

import (
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

// Joined returns at most limit services where a person has accepted an invitation, in order, except
// the services except.
func Joined(ctx context.Context, tx pgx.Tx, did syntax.DID, except []syntax.DID, limit int) ([]syntax.DID, error) {
	all, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], `
		SELECT DISTINCT service FROM received_invitations
		WHERE did = $1 AND state = 'accepted' AND service <> ALL (coalesce($2::text[], '{}')) ORDER BY service LIMIT $3`,
		did, except, limit)
	return all, errs.Wrap(err, "look for the services of a person")
}

// TellErasure asks another service to erase a person whose home is this service. refused says that
// the other service will never do so. If it is erasing the person already, the request changes
// nothing.
func (s *Service) TellErasure(ctx context.Context, to, did syntax.DID) (refused bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	service, err := s.find(ctx, to)
	if err == nil {
		err = s.call(ctx, service, nsid.DeliverErasure, struct {
			DID syntax.DID `json:"did"`
		}{did})
	}
	return errors.As(err, new(*refusedError)), err
}

// CheckHome checks that a person has chosen the service that speaks for the person, by a look at the
// person's record now: what the service says destroys. Errors: *DistrustError, ErrLookup.
func (s *Service) CheckHome(ctx context.Context, service, did syntax.DID) error {
	home, err := s.home(ctx, did, serviceauth.Now)
	if err != nil {
		return err
	}
	if home != service {
		return &DistrustError{service, "is not the delivery service that " + did.String() + " has chosen"}
	}
	return nil
}
