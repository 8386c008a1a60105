package convos

import (
	"bytes"
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

// ProposeExternally appends a proposal of an external sender (RFC 9420 §12.1.8.1): a sender that is
// not a member, but that the group lists. The server must know the group. The listed sender that
// the message names must have the caller's DID as its credential, and must have signed the message.
// Any other caller gets the answer of a non-member. A repeated request gets its first answer.
//
// The proposal must be of the convo's epoch, because a later commit could not refer to it. Errors:
// ErrNotFound, ErrNotExternalSender, *InvalidProposalError, and those of messages.AppendEntitled.
func ProposeExternally(ctx context.Context, tx pgx.Tx, d messages.Draft) (messages.Receipt, error) {
	known, err := messages.HasKey(ctx, tx, d)
	if err != nil {
		return messages.Receipt{}, err
	}
	if !known {
		if err := checkExternalSender(ctx, tx, d); err != nil {
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

// InvalidProposalError says why a proposal of an external sender is refused.
type InvalidProposalError struct{ Err error }

func (e *InvalidProposalError) Error() string { return "ciphertext: " + e.Err.Error() }
func (e *InvalidProposalError) Unwrap() error { return e.Err }

// checkExternalSender checks that the group lists the caller as the external sender that signed the
// proposal. It takes no lock, so that a non-member cannot delay the convo. It first reads the list
// of senders, so that a non-member cannot make the server read and parse the group.
func checkExternalSender(ctx context.Context, tx pgx.Tx, d messages.Draft) error {
	var (
		c              = locked{id: d.ConvoID}
		groupID        []byte
		member, listed bool
	)
	err := tx.QueryRow(ctx, `
		SELECT c.epoch, c.group_id, EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2),
			EXISTS (SELECT FROM public_groups WHERE convo_id = $1 AND epoch = c.epoch AND $2 = ANY (external_senders))
		FROM convos c WHERE c.id = $1`, d.ConvoID, d.Sender).Scan(&c.epoch, &groupID, &member, &listed)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("read the convo: %w", err)
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
	m, err := mls.ParseProposal(d.Body)
	switch {
	case err != nil:
		return &InvalidProposalError{err}
	case !bytes.Equal(m.GroupID, groupID):
		return messages.ErrWrongGroup
	case int64(m.Epoch) != c.epoch:
		return &messages.EpochMismatchError{Epoch: int64(m.Epoch), Current: c.epoch}
	}
	switch did, err := group.ExternalProposer(m); {
	case err != nil:
		return &InvalidProposalError{err}
	case did != d.Sender.String():
		return refusal
	}
	return nil
}
