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

// readStandings reads everything that decides whether other people accept a caller.
//
//go:embed check.sql
var readStandings string

// NewestConvos is how many of a person's newest convos are searched for a convo that the person
// shares with a caller. Convos that the person has not accepted count too. Older convos are
// ignored, so that people who are in thousands of convos do not make an invitation or a claim
// expensive.
const NewestConvos = 500

// standing is everything that decides whether one DID accepts a caller.
type standing struct {
	DID             syntax.DID
	Policy          Policy
	Accepted        *bool // the DID has accepted the convo in question; nil if it is not a member
	BlockedByCaller bool
	BlocksCaller    bool
	Shares          bool // both are in a convo that both have accepted; false if that was not read
	BlocksCompany   bool // the DID has blocked somebody whom it would meet
}

// refuses reports whether the DID does not let the caller invite it. In a convo that the DID has
// accepted, its policy does not apply: the other members can add another device of it.
func (s standing) refuses() bool {
	if s.BlocksCaller {
		return true
	}
	if s.Accepted != nil && *s.Accepted {
		return false
	}
	return s.Policy == Nobody || s.Policy == Shared && !s.Shares
}

// request reports whether the invitation is a request. For a member, the earlier decision stands.
func (s standing) request() bool {
	if s.Accepted != nil {
		return !*s.Accepted
	}
	return !s.Shares || s.BlocksCompany
}

// Invitation is the decision about the people that a caller invites.
type Invitation struct {
	// Refused lists the people who do not let the caller invite them. To the caller, they must look
	// like people without KeyPackages.
	Refused []syntax.DID
	// Requests lists the people who get the invitation as a request: they share no convo with the
	// caller, or would meet somebody whom they have blocked.
	Requests []syntax.DID
}

// Invite decides about an invitation of dids into convo, or into a new convo if convo is nil. The
// caller is a member of convo and has locked it. Invite sees every block whose request was answered
// before. Error besides the database's: *BlockedError.
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

// Refusals returns the people of dids who do not let the caller claim their KeyPackages, for convo,
// or for an unknown convo if convo is nil. Error besides the database's: *BlockedError.
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

// standings runs the statements of batch, and then reads the standings of dids. The caller itself
// is left out. Error besides the database's: *BlockedError.
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
