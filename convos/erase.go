package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// EraseMembership makes a person leave one of the person's convos. left is false if the person is a
// member of no convo. If the person is the last member, the convo is deleted: Purge deletes the
// rest of it. The transaction must be one of maintenance.
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

// NextOf returns the next convo, after the given one, in which a person is or was a member.
// uuid.Nil comes before all convos. ok is false if there is no next convo.
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

// Lock locks a convo, as every write does before it locks anything else in the convo.
func Lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	_, err := tx.Exec(ctx, `SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo)
	return errs.Wrap(err, "lock the convo")
}

// Erase replaces a person, who has left, by the person's tombstone: in a convo, its roster, its
// public group and its disputes. It deletes what the person has reported. It returns how many rows
// it has changed. The group's own objects name the person until a member removes the person's leaf.
// Erase the person's Welcomes in the convo first: afterwards NextOf does not find the convo.
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

// hasErased checks that did has a leaf in the group, but is not on the roster. Such a leaf belongs
// to an erased member, and a member must remove it, as after a departure. Error:
// ErrTargetNotMember.
func (c *locked) hasErased(ctx context.Context, tx pgx.Tx, did syntax.DID) error {
	group, err := c.publicGroup(ctx, tx)
	if err == nil && !group.has(did) {
		err = ErrTargetNotMember
	}
	return err
}
