package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
	"mlsd/people/disputes"
)

// EraseMembership makes a person leave one of its convos, and reports whether there was one. A convo
// of which it is the last member is deleted: Purge deletes the rest of it. The transaction must be
// one of maintenance.
func (r *Remover) EraseMembership(ctx context.Context, tx pgx.Tx, p tombstone.Person) (left bool, err error) {
	var convo uuid.UUID
	var last bool
	err = tx.QueryRow(ctx, `
		SELECT m.convo_id, NOT EXISTS (SELECT FROM members o WHERE o.convo_id = m.convo_id AND o.did <> $1 AND o.left_at IS
			NULL)
		FROM members m WHERE m.did = $1 AND m.left_at IS NULL ORDER BY m.convo_id LIMIT 1`, p.DID).Scan(&convo, &last)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a convo: %w", err)
	}
	if last {
		_, err = r.Remove(ctx, tx, convo)
	} else {
		_, err = Leave(ctx, tx, Departure{ConvoID: convo, Caller: p.DID, Target: p.DID})
	}
	if errors.Is(err, ErrNotFound) { // deleted meanwhile
		err = nil
	}
	return true, err
}

// NextOf returns the convo after another one in which a person is or was a member. uuid.Nil comes
// before all. ok is false if there is none.
func NextOf(ctx context.Context, tx pgx.Tx, p tombstone.Person, after uuid.UUID) (next uuid.UUID, ok bool, err error) {
	err = tx.QueryRow(ctx, `SELECT convo_id FROM members WHERE did = $1 AND convo_id > $2 ORDER BY convo_id LIMIT 1`,
		p.DID, after).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, false, nil
	}
	if err != nil {
		return uuid.Nil, false, fmt.Errorf("look for the next convo: %w", err)
	}
	return next, true, nil
}

// Lock takes the lock of a convo, as every write does before it locks anything else of the convo.
func Lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	_, err := tx.Exec(ctx, `SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo)
	return errs.Wrap(err, "lock the convo")
}

// Erase puts the tombstone of a person, who has left, into a convo, its roster, its public group and
// its disputes. It deletes what the person has reported. It returns how many rows have changed. The
// group's own objects name the person for as long as members keep its leaf. The person's Welcomes of
// the convo are erased before: afterwards NextOf does not find the convo.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID) (n int64, err error) {
	if err := Lock(ctx, tx, convo); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `
		WITH convo AS (
			UPDATE convos SET creator_did = CASE creator_did WHEN $2 THEN $3 ELSE creator_did END,
				key_retired = key_retired OR creator_did = $2,
				reserved_for = nullif(reserved_for, $2), reserved_until = CASE WHEN reserved_for <> $2 THEN reserved_until END
			WHERE id = $1 AND (creator_did = $2 OR reserved_for = $2)
			RETURNING id
		), roster AS (
			UPDATE members SET did = CASE did WHEN $2 THEN $3 ELSE did END, invited_by = CASE invited_by WHEN $2 THEN $3 ELSE
				invited_by END
			WHERE convo_id = $1 AND (did = $2 OR invited_by = $2)
			RETURNING convo_id
		), public_group AS (
			UPDATE public_groups SET vouched_by = $3 WHERE convo_id = $1 AND vouched_by = $2
		)
		SELECT (SELECT count(*) FROM convo) + (SELECT count(*) FROM roster)`, convo, p.DID, p.In(convo)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("erase a member: %w", err)
	}
	reported, err := disputes.Erase(ctx, tx, p, convo)
	return n + reported, err
}

// hasErased fails unless the group has a leaf of did, which is not on the roster: it is the leaf of a
// member who was erased, and has to be removed like that of one who left. Error: ErrTargetNotMember.
func (c *locked) hasErased(ctx context.Context, tx pgx.Tx, did syntax.DID) error {
	group, err := c.publicGroup(ctx, tx)
	if err == nil && !group.has(did) {
		err = ErrTargetNotMember
	}
	return err
}
