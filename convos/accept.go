package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// Accept makes did's membership accepted, if it is a request. A repeated call changes nothing.
// Accept does not lock the convo's row: it changes who gets pushes, not who can append. Errors:
// ErrNotFound, ErrNotMember.
func Accept(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, did syntax.DID) error {
	var left bool
	err := q.QueryRow(ctx, `
		WITH accepted AS (
			UPDATE members SET requested_at = NULL
			WHERE convo_id = $1 AND did = $2 AND left_at IS NULL AND requested_at IS NOT NULL
		)
		SELECT left_at IS NOT NULL FROM members WHERE convo_id = $1 AND did = $2`, convo, did).Scan(&left)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("accept the convo: %w", err)
	case left:
		return ErrNotMember
	}
	return nil
}
