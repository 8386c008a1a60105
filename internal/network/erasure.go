package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/nsid"
)

// Joined returns the services where a person has accepted an invitation, but those of except, in their
// order, at most limit of them.
func Joined(ctx context.Context, tx pgx.Tx, did syntax.DID, except []syntax.DID, limit int) ([]syntax.DID, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT service FROM received_invitations
		WHERE did = $1 AND state = 'accepted' AND service <> ALL (coalesce($2::text[], '{}')) ORDER BY service LIMIT $3`,
		did, except, limit)
	if err != nil {
		return nil, fmt.Errorf("look for the services of a person: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[syntax.DID])
	if err != nil {
		return nil, fmt.Errorf("look for the services of a person: %w", err)
	}
	return all, nil
}

// TellErasure asks another service to erase a person whose home this is. refused says that it never
// will. A person that it erases already changes nothing.
func (s *Service) TellErasure(ctx context.Context, to, did syntax.DID) (refused bool, err error) {
	err = s.call(ctx, to, nsid.DeliverErasure, struct {
		DID syntax.DID `json:"did"`
	}{did})
	return errors.As(err, new(*refusedError)), err
}

// CheckHome checks that a person has chosen the service that speaks for it. It makes a look-up if the
// person is not remembered. Errors: *DistrustError, ErrLookup.
func (s *Service) CheckHome(ctx context.Context, service, did syntax.DID) error {
	home, err := s.cfg.Services.Home(ctx, did)
	if err != nil {
		return fmt.Errorf("%w: the service of %s: %w", ErrLookup, did, err)
	}
	if home != service {
		return &DistrustError{service, "is not the delivery service that " + did.String() + " has chosen"}
	}
	return nil
}
