package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/outbox"
	"mlsd/welcome"
)

// Departure is a request to leave or to remove a member.
type Departure struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Target  syntax.DID // the caller, or the member that the caller removes
	Block   bool       // the caller leaves, and also blocks the person that invited it
	Proposed
}

// Leave takes Target off the roster. A departure needs no commit and does not change the epoch,
// because a member cannot commit its own removal (RFC 9420 §12.2). A repeated departure gets the
// same answer. Only an admin can remove another member, and needs a commit. Once a member has
// left, any member can commit the removal of the member's leaves from the tree. A closed convo can
// be left without a commit, and accepts no commit.
//
// Errors: ErrNotFound, ErrNotMember, ErrConvoClosed, ErrLastMember, ErrNotPermitted,
// ErrCommitRequired, ErrTargetNotMember, *messages.EpochMismatchError, *InvalidObjectError, and
// those of consent.Block.
func Leave(ctx context.Context, tx pgx.Tx, d Departure) (Advanced, error) {
	if d.Block {
		if err := pgpool.LockBlocks.Wait(ctx, tx, d.Caller.String()); err != nil {
			return Advanced{}, err
		}
	}
	advanced, err := leave(ctx, tx, d)
	if err == nil && d.Block {
		advanced.Blocked, err = blockInviter(ctx, tx, d.ConvoID, d.Caller)
	}
	return advanced, err
}

// blockInviter makes did block the person that invited did into the convo. It returns that person,
// or "" if the person is not known. Call it after the locks of blocks and of the convo are taken.
func blockInviter(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID) (syntax.DID, error) {
	var inviter *syntax.DID
	err := tx.QueryRow(ctx, `SELECT invited_by FROM members WHERE convo_id = $1 AND did = $2`, convo, did).Scan(&inviter)
	if err != nil {
		return "", fmt.Errorf("look for the inviter: %w", err)
	}
	if inviter == nil || *inviter == did {
		return "", nil
	}
	_, err = Block(ctx, tx, did, *inviter)
	return *inviter, err
}

// leave is Leave without the block.
func leave(ctx context.Context, tx pgx.Tx, d Departure) (Advanced, error) {
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
	if c.closed && (!self || d.Commit != nil) {
		return Advanced{}, c.refuseClosed()
	}
	present, alone, err := c.isMember(ctx, tx, d.Target)
	if errors.Is(err, ErrTargetNotMember) {
		present, err = false, c.hasErased(ctx, tx, d.Target)
	}
	if err != nil {
		return Advanced{}, err
	}
	if !self && present && !may(c.roleOf(d.Caller), removePerson) {
		return Advanced{}, ErrNotPermitted
	}
	if !self && d.Commit == nil {
		return Advanced{}, ErrCommitRequired
	}
	advanced := Advanced{Epoch: c.epoch}
	if d.Commit != nil {
		var allowed rights
		if !self {
			allowed.removes = d.Target
		}
		if advanced, err = c.advance(ctx, tx, d.Caller, d.Proposed, allowed); err != nil {
			return Advanced{}, err
		}
	}
	if !present {
		return advanced, nil
	}
	if alone {
		return Advanced{}, ErrLastMember
	}
	leaf := false // the member has left, so other members have to commit its removal
	if self && !c.closed {
		group, err := c.publicGroup(ctx, tx)
		if err != nil {
			return Advanced{}, err
		}
		leaf = group.Group == nil || group.has(d.Target)
	}
	if err := c.removeFromRoster(ctx, tx, d.Target, d.Caller, leaf); err != nil {
		return Advanced{}, err
	}
	if err := c.handOver(ctx, tx); err != nil {
		return Advanced{}, err
	}
	return advanced, c.endWelcomes(ctx, tx, welcome.Device{DID: d.Target})
}

// endWelcomes ends the devices' Welcomes that are on their way. If people live at other services,
// their homes are told.
func (c *locked) endWelcomes(ctx context.Context, tx pgx.Tx, devices ...welcome.Device) error {
	if err := welcome.Supersede(ctx, tx, c.id, devices...); err != nil {
		return err
	}
	return welcome.WithdrawInvitations(ctx, tx, c.id, devices...)
}

// isMember reports whether did is a current member, and whether nobody else is. Error:
// ErrTargetNotMember, if did never was a member.
func (c *locked) isMember(ctx context.Context, tx pgx.Tx, did syntax.DID) (present, alone bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT left_at IS NULL, NOT EXISTS (SELECT FROM members WHERE convo_id = $1 AND did <> $2 AND left_at IS NULL)
		FROM members WHERE convo_id = $1 AND did = $2`, c.id, did).Scan(&present, &alone)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, ErrTargetNotMember
	}
	return present, alone, errs.Wrap(err, "read the roster")
}

// removeFromRoster takes did off the roster, as of the present end of the log. leaf says that did
// may still have a leaf in the group. It also updates the convo's row without a change, because
// messages.Log sees by that row that the roster has changed. did is a member, and not the last one.
// The caller hands over: did can be the last admin.
func (c *locked) removeFromRoster(ctx context.Context, tx pgx.Tx, did, by syntax.DID, leaf bool) error {
	change := outbox.Removed
	if did == by {
		change = outbox.Left
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		UPDATE members SET left_at = clock_timestamp(), left_seq = $3, left_epoch = $4, role = 'member',
			demoted_epoch = CASE role WHEN 'member' THEN demoted_epoch ELSE $4 END
		WHERE convo_id = $1 AND did = $2`, c.id, did, c.lastSeq, c.epoch)
	batch.Queue(`UPDATE convos SET last_seq = last_seq WHERE id = $1`, c.id)
	outbox.Queue(batch, c.id, outbox.Event{Kind: outbox.Membership, DID: did, Detail: outbox.Detail{
		Change: change, By: by, Epoch: c.epoch, CommitNeeded: leaf,
	}})
	c.retire(did)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "take off the roster")
}
