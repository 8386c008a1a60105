package convos

import (
	"bytes"
	"context"
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/messages"
	"mlsd/mls"
)

// Propose appends a proposal that was sent in clear, of a member or of an external sender. It
// refuses what no commit could contain, because some libraries put every pending proposal into each
// commit: a single bad one would stop the group until somebody else ends the epoch. A proposal that
// is encrypted cannot be judged here. messages.Log appends it like any message.
//
// A repeated request gets its first answer. The proposal must be of the convo's epoch, because a
// later commit could not refer to it. Errors: ErrNotFound, ErrNotMember, ErrConvoClosed,
// ErrNotExternalSender, ErrNotPermitted, *InvalidObjectError, and those of messages.AppendEntitled.
func Propose(ctx context.Context, tx pgx.Tx, d messages.Draft) (messages.Receipt, error) {
	m, err := mls.ParseProposal(d.Body)
	if err != nil {
		return messages.Receipt{}, invalid(Proposal, "%v", err)
	}
	judge := judgeExternal
	if m.SenderType != mls.SenderTypeExternal {
		c, err := lockConvo(ctx, tx, d.ConvoID, d.Sender)
		if err != nil {
			return messages.Receipt{}, err
		}
		judge = c.judgeMember
	}
	known, err := messages.HasKey(ctx, tx, d)
	if err != nil {
		return messages.Receipt{}, err
	}
	if !known {
		if err := judge(ctx, tx, m, d); err != nil {
			return messages.Receipt{}, err
		}
	}
	receipt, err := messages.AppendEntitled(ctx, tx, d)
	if err == nil && known && !receipt.Replayed {
		// The message under the key has expired, and nobody has checked this message.
		return messages.Receipt{}, ErrNotFound
	}
	return receipt, err
}

// judgeMember judges a proposal of a member.
func (c *locked) judgeMember(ctx context.Context, tx pgx.Tx, m *mls.ProposalMessage, d messages.Draft) error {
	if c.leftEpoch != nil {
		return ErrNotMember
	}
	if err := c.refuseClosed(); err != nil {
		return err
	}
	if err := c.checkPlace(m); err != nil {
		return err
	}
	group, err := c.publicGroup(ctx, tx)
	if err != nil {
		return err
	}
	return c.judgeProposal(ctx, tx, m, d.Sender, group)
}

// checkPlace checks that a proposal is of this group and epoch.
func (c *locked) checkPlace(m *mls.ProposalMessage) error {
	switch {
	case !bytes.Equal(m.GroupID, c.groupID):
		return messages.ErrWrongGroup
	case int64(m.Epoch) != c.epoch:
		return &messages.EpochMismatchError{Epoch: int64(m.Epoch), Current: c.epoch}
	}
	return nil
}

// judgeProposal judges the proposal m of by, by the rules of a commit with which another member
// commits it alone. before is the group. If it is not known, only the kind of the proposal is judged.
func (c *locked) judgeProposal(ctx context.Context, tx pgx.Tx, m *mls.ProposalMessage, by syntax.DID,
	before publicGroup) error {
	if m.Proposal.Type == mls.ProposalAdd {
		return invalid(Proposal, "an Add, which others could not commit: a new device needs a Welcome, and a request that "+
			"names its owner. Put the Add into a commit: of addMembers, or of submitCommit for a device of your own")
	}
	if before.Group == nil {
		return c.permitReplacement("", &mls.Change{
			Context: m.Proposal.Type == mls.ProposalGroupContextExtensions, ContextBy: mls.Author{DID: by.String()},
			ReInit: m.Proposal.ReInit, ReInitBy: mls.Author{DID: by.String()},
		})
	}
	// The GroupInfo for which another member has vouched can be wrong. Only members know.
	doubtful := before.vouchedBy != "" && before.vouchedBy != by
	if m.SenderType == mls.SenderTypeMember && !before.owns(by, m) {
		if doubtful {
			return nil
		}
		return invalid(Proposal, "sender is not a device of the caller (RFC 9420 §6.1)")
	}
	pending, err := messages.Proposals(ctx, tx, c.id, c.epoch, c.lastSeq)
	if err != nil {
		return err
	}
	switch change, err := before.Propose(m, before.sent(pending)...); {
	case err == nil:
		return asProposal(c.permit(ctx, tx, "", change, rights{}, before))
	case errors.Is(err, mls.ErrUnsupported): // of a type that only the application knows
		return nil
	case errors.Is(err, mls.ErrBadSignature) && doubtful:
		return nil
	default:
		return invalid(Proposal, "%v", err)
	}
}

// asProposal makes the refusal of a commit that of a proposal.
func asProposal(err error) error {
	var object *InvalidObjectError
	if errors.As(err, &object) {
		return &InvalidObjectError{Proposal, object.Reason}
	}
	return err
}
