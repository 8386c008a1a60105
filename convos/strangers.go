package convos

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/quota"
	"mlsd/people/consent"
)

// readStrangers finds the invited who share no convo with the inviter.
//
//go:embed strangers.sql
var readStrangers string

// countInvited counts the strangers among the people whom by puts on a roster, and refuses if there
// are too many, or if one of them has too many open invitations. It does not say who. The statement
// reads the newest memberships of the invited, by index. Error: *quota.ExceededError.
func countInvited(ctx context.Context, tx pgx.Tx, by syntax.DID, invited []syntax.DID, s *quota.Spending) error {
	bounded, most := s.Invitations()
	if len(invited) == 0 || !bounded && most == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, readStrangers, by, invited, most, consent.NewestConvos)
	var strangers, open, highest int64
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&open}, func() error {
			strangers++
			highest = max(highest, open)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("look for strangers among the invited: %w", err)
	}
	if most != 0 && highest >= most {
		return quota.TooManyInvitations(highest, most)
	}
	return s.Take(quota.Cost{Of: quota.Strangers, N: strangers})
}
