package consent

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// readStandings reads what stands between a caller and others.
//
//go:embed check.sql
var readStandings string

// NewestConvos is how many of a person's convos are looked at for one that it shares with a caller:
// the newest ones, with those that it has not accepted. Behind them the two share nothing. So people
// who are in thousands of convos do not make an invitation or a claim expensive.
const NewestConvos = 500

// standing is what stands between a caller and one DID.
type standing struct {
	DID             syntax.DID
	Policy          Policy
	Accepted        *bool // the DID has accepted the convo of the question; nil: it is no member
	BlockedByCaller bool
	BlocksCaller    bool
	Shares          bool // both are in a convo that both have accepted; false if it was not asked
	BlocksCompany   bool // the DID has blocked somebody whom it would meet
}

// refuses reports whether the DID does not let the caller invite it. A policy does not concern the
// members of a convo that the DID has accepted: they can add a device of its there.
func (s standing) refuses() bool {
	if s.BlocksCaller {
		return true
	}
	if s.Accepted != nil && *s.Accepted {
		return false
	}
	return s.Policy == Nobody || s.Policy == Shared && !s.Shares
}

// request reports whether the invitation is a request. That of a member stays what it is.
func (s standing) request() bool {
	if s.Accepted != nil {
		return !*s.Accepted
	}
	return !s.Shares || s.BlocksCompany
}

// Invitation is the decision about the people whom a caller invites.
type Invitation struct {
	// Refused do not let the caller invite them. The caller must learn no more than of people
	// without KeyPackages.
	Refused []syntax.DID
	// Requests get the invitation as a request: they share no convo with the caller, or they would
	// meet somebody whom they have blocked.
	Requests []syntax.DID
}

// Invite decides about an invitation of dids into convo, or into a new one if convo is nil. The
// caller is a member of convo, and has locked it. A block that was answered before is seen. Error
// besides the database's: *BlockedError.
func Invite(ctx context.Context, tx pgx.Tx, caller syntax.DID, dids []syntax.DID, convo *uuid.UUID) (Invitation,
	error) {
	batch := &pgx.Batch{}
	pgpool.LockInvitations.QueueShared(batch, caller.String())
	found, err := standings(ctx, tx, batch, caller, dids, convo, true)
	if err != nil {
		return Invitation{}, fmt.Errorf("check the invitation: %w", err)
	}
	var inv Invitation
	for _, s := range found {
		if s.refuses() {
			inv.Refused = append(inv.Refused, s.DID)
		}
		if s.request() {
			inv.Requests = append(inv.Requests, s.DID)
		}
	}
	return inv, nil
}

// Refusals returns those of dids who do not let the caller claim their KeyPackages, for convo or
// for a convo that is not known. Error besides the database's: *BlockedError.
func Refusals(ctx context.Context, tx pgx.Tx, caller syntax.DID, dids []syntax.DID,
	convo *uuid.UUID) (refused []syntax.DID, err error) {
	found, err := standings(ctx, tx, &pgx.Batch{}, caller, dids, convo, false)
	if err != nil {
		return nil, fmt.Errorf("check the claim: %w", err)
	}
	for _, s := range found {
		if s.refuses() {
			refused = append(refused, s.DID)
		}
	}
	return refused, nil
}

// standings reads what stands between the caller and dids, behind the statements of batch. The
// caller itself is left out. Error besides the database's: *BlockedError.
func standings(
	ctx context.Context, tx pgx.Tx, batch *pgx.Batch, caller syntax.DID, dids []syntax.DID, convo *uuid.UUID, invites bool,
) (found []standing, err error) {
	others := make([]syntax.DID, 0, len(dids))
	for _, did := range dids {
		if did != caller {
			others = append(others, did)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	batch.Queue(readStandings, caller, others, convo, invites, NewestConvos).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[standing])
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	for _, s := range found {
		if s.BlockedByCaller {
			return nil, &BlockedError{s.DID}
		}
	}
	return found, nil
}
