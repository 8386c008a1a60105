package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/outbox"
	"mlsd/welcome"
)

// Departure is a member who leaves, or who is removed by another.
type Departure struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Target  syntax.DID // the caller itself, or whom it removes
	Proposed
}

// Leave takes Target off the roster. Leaving needs no commit and leaves the epoch alone, because a member cannot commit its
// own removal (RFC 9420 §12.2); leaving again gives the same answer. Removing another needs a commit and is the creator's
// right; the removal of someone who has left already, which only tidies the tree, may be committed by any member.
//
// Errors: ErrNotFound, ErrNotMember, ErrLastMember, ErrNotPermitted, ErrCommitRequired, ErrTargetNotMember,
// *messages.EpochMismatchError, *InvalidObjectError.
func Leave(ctx context.Context, tx pgx.Tx, d Departure) (Advanced, error) {
	c, err := lockConvo(ctx, tx, d.ConvoID, d.Caller)
	if err != nil {
		return Advanced{}, err
	}
	self := d.Target == d.Caller
	if c.leftEpoch != nil {
		if self {
			return Advanced{Epoch: *c.leftEpoch}, nil
		}
		return Advanced{}, ErrNotMember
	}
	present, err := c.standing(ctx, tx, d.Target)
	if err != nil {
		return Advanced{}, err
	}
	if !self && present && d.Caller != c.creator {
		return Advanced{}, ErrNotPermitted
	}
	if !self && d.Commit == nil {
		return Advanced{}, ErrCommitRequired
	}
	advanced := Advanced{Epoch: c.epoch}
	if d.Commit != nil {
		var may rights
		if !self {
			may.removes = d.Target
		}
		if advanced, err = c.advance(ctx, tx, d.Caller, d.Proposed, may); err != nil {
			return Advanced{}, err
		}
	}
	if !present {
		return advanced, nil
	}
	leaf := false // of one who leaves: others have to commit its removal
	if self {
		group, err := c.publicGroup(ctx, tx)
		if err != nil {
			return Advanced{}, err
		}
		leaf = group.Group == nil || group.has(d.Target)
	}
	if err := c.strike(ctx, tx, d.Target, d.Caller, leaf); err != nil {
		return Advanced{}, err
	}
	return advanced, welcome.Supersede(ctx, tx, c.id, []syntax.DID{d.Target})
}

// standing reports whether did is a current member. Error: ErrTargetNotMember.
func (c *locked) standing(ctx context.Context, tx pgx.Tx, did syntax.DID) (present bool, err error) {
	err = tx.QueryRow(ctx, `SELECT left_at IS NULL FROM members WHERE convo_id = $1 AND did = $2`, c.id, did).Scan(&present)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, ErrTargetNotMember
	}
	if err != nil {
		return false, fmt.Errorf("read the roster: %w", err)
	}
	return present, nil
}

// strike takes did off the roster as of the log's present end. leaf says whether it still has one in the group, as far as is known.
// Error: ErrLastMember.
func (c *locked) strike(ctx context.Context, tx pgx.Tx, did, by syntax.DID, leaf bool) error {
	change := outbox.Removed
	if did == by {
		change = outbox.Left
	}
	tag, err := tx.Exec(ctx, `
		WITH changed AS (
			UPDATE members SET left_at = clock_timestamp(), left_seq = $3, left_epoch = $4
			WHERE convo_id = $1 AND did = $2
				AND EXISTS (SELECT FROM members WHERE convo_id = $1 AND did <> $2 AND left_at IS NULL)
			RETURNING convo_id, left_seq AS seq, did, $5::text AS change, $6::text AS by, left_epoch AS epoch, $7::boolean AS commit_needed
		)`+outbox.NoteMembership, c.id, did, c.lastSeq, c.epoch, change, by, leaf)
	if err != nil {
		return fmt.Errorf("take off the roster: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrLastMember
	}
	return nil
}
