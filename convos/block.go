package convos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/people/consent"
)

// maxDeclined bounds the invitations that one block declines. Each declined invitation is a
// departure. The default quotas let one inviter have fewer open invitations. A repeated block
// declines the next ones.
const maxDeclined = 50

// Block blocks another DID for did. It also declines the blocked person's invitations into convos
// of this service that did has not accepted. It returns when did first blocked the person. Errors:
// those of consent.Block.
func Block(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) (at time.Time, err error) {
	// This lock comes first, so that two blocks by one person do not wait for each other's convos.
	if err := pgpool.LockBlocks.Wait(ctx, tx, did.String()); err != nil {
		return at, err
	}
	if err := decline(ctx, tx, did, blocked); err != nil {
		return at, err
	}
	if at, err = consent.Block(ctx, tx, did, blocked); err != nil {
		return at, err
	}
	// consent.Block has waited for the blocked person's running invitations, which are rare. If one
	// more invitation into the same convos is running, the database aborts one of the two
	// transactions.
	return at, decline(ctx, tx, did, blocked)
}

// decline makes did leave the convos to which the inviter has invited did and which did has not
// accepted. A convo that everybody else has left remains. decline locks the convos in the order of
// their ids. It also locks the memberships, so that none of them is accepted meanwhile.
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
