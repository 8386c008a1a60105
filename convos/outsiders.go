package convos

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
	"mlsd/people/consent"
	"mlsd/people/quota"
)

// readOutsiders finds the invited people who share no convo with the inviter.
//
//go:embed outsiders.sql
var readOutsiders string

// countInvited counts the people whom by invites into convo and who share no convo with by. It
// refuses if there are too many of them, or if one of them has too many invitations. The refusal
// does not say who. The statement reads the newest memberships and invitations of the invited
// people, by index. Under the inviter's lock, simultaneous invitations count each other. Error:
// *quota.ExceededError.
func countInvited(ctx context.Context, tx pgx.Tx, by syntax.DID, convo uuid.UUID, invited []syntax.DID,
	s *quota.Spending) error {
	bounds := s.Invitations()
	if len(invited) == 0 || !bounds.Outsiders && bounds.Open == 0 && bounds.OneInviter == 0 {
		return nil
	}
	var outsiders []syntax.DID
	var refused error
	batch := &pgx.Batch{}
	pgpool.LockInvitations.Queue(batch, by.String())
	batch.Queue(readOutsiders, by, invited, cmp.Or(bounds.Open, consent.NewestConvos), consent.NewestConvos,
		bounds.Address).
		Query(func(rows pgx.Rows) error {
			var did syntax.DID
			var open, ofInviter, ofAddress int64
			_, err := pgx.ForEachRow(rows, []any{&did, &open, &ofInviter, &ofAddress}, func() error {
				outsiders = append(outsiders, did)
				refused = cmp.Or(refused, bounds.Check(open, ofInviter, ofAddress))
				return nil
			})
			return err
		})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("look for outsiders among the invited: %w", err)
	}
	if refused != nil {
		return refused
	}
	if err := s.Take(quota.Cost{Of: quota.Outsiders, N: int64(len(outsiders))}); err != nil {
		return err
	}
	if len(outsiders) == 0 || bounds.OneInviter == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO invitations (did, inviter, address, convo_id, created_at)
		SELECT did, $2, $3, $4, clock_timestamp() FROM unnest($1::text[]) AS did`, outsiders, by, bounds.Address, convo)
	return errs.Wrap(err, "record the invitations")
}

// SweepInvitations deletes the invitations that no longer count.
func SweepInvitations(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "invitations", `
		DELETE FROM invitations WHERE (did, created_at, inviter, convo_id) IN (
			SELECT did, created_at, inviter, convo_id FROM invitations WHERE created_at <= now() - interval '1 day'
			ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)`)
}

// EraseInvitations deletes up to limit invitations that a person has made or has received. It
// returns how many it has deleted. 0 means that none is left.
func EraseInvitations(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM invitations WHERE (did, created_at, inviter, convo_id) IN (
			(SELECT did, created_at, inviter, convo_id FROM invitations WHERE did = $1 LIMIT $2)
			UNION ALL
			(SELECT did, created_at, inviter, convo_id FROM invitations WHERE inviter = $1 LIMIT $2))`, p.DID, limit)
	return tag.RowsAffected(), errs.Wrap(err, "erase invitations")
}
