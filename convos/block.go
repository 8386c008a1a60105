package convos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/network"
	"mlsd/internal/pgpool"
	"mlsd/people/consent"
)

// maxDeclined bounds the invitations that a block declines, each of which is a departure. Quotas leave
// fewer to one inviter, unless the operator has set others. To block again declines the next ones.
const maxDeclined = 50

// Block makes did block another DID, and declines the invitations of the blocked one that did has not
// accepted, here and at other services. It returns when did first blocked it. Errors: those of
// consent.Block.
func Block(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) (at time.Time, err error) {
	// First, so that two blocks of a person do not wait for each other's convos.
	if err := pgpool.LockBlocks.Wait(ctx, tx, did.String()); err != nil {
		return at, err
	}
	if err := decline(ctx, tx, did, blocked); err != nil {
		return at, err
	}
	if at, err = consent.Block(ctx, tx, did, blocked); err != nil {
		return at, err
	}
	// consent.Block has waited for the last invitations. They are seldom there. If yet another one into
	// their convo is under way, the database ends one of the two transactions.
	if err := decline(ctx, tx, did, blocked); err != nil {
		return at, err
	}
	return at, network.Refuse(ctx, tx, did, blocked)
}

// decline makes did leave the convos to which the inviter has invited it, and which did has not
// accepted. A convo that everybody else has left stays. It locks the convos in their order, and the
// memberships, so that none of them is accepted meanwhile.
func decline(ctx context.Context, tx pgx.Tx, did, inviter syntax.DID) error {
	open, err := pgpool.Collect(ctx, tx, pgx.RowTo[uuid.UUID], `
		SELECT c.id FROM members m JOIN convos c ON c.id = m.convo_id
		WHERE m.did = $1 AND m.invited_by = $2 AND m.left_at IS NULL AND m.requested_at IS NOT NULL
		ORDER BY c.id LIMIT $3 FOR NO KEY UPDATE OF c, m`, did, inviter, maxDeclined)
	if err != nil {
		return fmt.Errorf("look for invitations of the blocked: %w", err)
	}
	for _, convo := range open {
		_, err := leave(ctx, tx, Departure{ConvoID: convo, Caller: did, Target: did})
		if err != nil && !errors.Is(err, ErrLastMember) {
			return err
		}
	}
	return nil
}
