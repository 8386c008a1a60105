package convos

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mlsd/messages"
	"mlsd/mls"
)

// ErrNotExternalSender says that a member sends a proposal as an external sender, but the group
// does not list the member as an external sender.
var ErrNotExternalSender = errors.New(
	"ciphertext: its sender is external, and the group's external_senders do not name the caller (RFC 9420 §12.1.8.1)")

// judgeExternal judges a proposal of an external sender (RFC 9420 §12.1.8.1): a sender that is not a
// member, but that the group lists. The server must know the group. The listed sender that the
// message names must have the caller's DID as its credential, and must have signed the message. Any
// other caller gets the answer of a non-member.
//
// It takes no lock, so that a non-member cannot delay the convo. It first reads the list of senders,
// so that a non-member cannot make the server read and parse the group.
func judgeExternal(ctx context.Context, tx pgx.Tx, m *mls.ProposalMessage, d messages.Draft) error {
	var (
		c              = locked{id: d.ConvoID}
		member, listed bool
	)
	err := tx.QueryRow(ctx, `
		SELECT c.epoch, c.last_seq, c.group_id, c.creator_did, EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2),
			EXISTS (SELECT FROM public_groups WHERE convo_id = $1 AND epoch = c.epoch AND $2 = ANY (external_senders))
		FROM convos c WHERE c.id = $1`, d.ConvoID, d.Sender).
		Scan(&c.epoch, &c.lastSeq, &c.groupID, &c.creator, &member, &listed)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("read the convo: %w", err)
	}
	batch := &pgx.Batch{}
	queueRoles(batch, &c)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("read the roles: %w", err)
	}
	refusal := ErrNotFound
	if member {
		refusal = ErrNotExternalSender
	}
	if !listed {
		return refusal
	}
	group, err := c.publicGroup(ctx, tx)
	if err != nil {
		return err
	}
	if group.Group == nil { // a commit has come in between
		return refusal
	}
	if err := c.checkPlace(m); err != nil {
		return err
	}
	switch did, err := group.ExternalProposer(m); {
	case err != nil:
		return invalid(Proposal, "%v", err)
	case did != d.Sender.String():
		return refusal
	}
	return c.judgeProposal(ctx, tx, m, d.Sender, group)
}
