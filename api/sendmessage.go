package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/idem"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/mls"
)

// SendMessage: blue.catbird.mls.sendMessage. This is the hot path: the message shares a transaction
// with others, and its own row is its idempotency record.
func (h *handlers) SendMessage(c *call, in *mlsapi.SendMessageInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	if in.SenderDID != c.caller {
		return named(mlsapi.ErrSenderMismatch,
			fmt.Sprintf("senderDid is %.128s, and the caller %s; they must be the same", in.SenderDID, c.caller))
	}
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	header, err := messageHeader(in)
	if err != nil {
		return err
	}
	if key == "" {
		sum := sha256.Sum256(in.Ciphertext)
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	c.usedKey = key
	send := h.Messages.Send
	if header.WireFormat == mls.WireFormatPublicMessage { // a proposal in clear
		if err := c.beginExpensive(h.admission); err != nil {
			return err
		}
		defer c.endExpensive()
		send = h.propose
	}
	if err := h.openQuota(c); err != nil {
		return err
	}
	draft := messages.Draft{
		ConvoID: convo, GroupID: header.GroupID, Sender: c.caller, Key: key, Hash: content(in.Fields()).Hash(),
		Kind:  header.ContentType,
		Epoch: int64(header.Epoch), Body: in.Ciphertext, EmbedType: in.EmbedType, EmbedURI: in.EmbedURI, Token: c.token,
		Quota: c.quota,
	}
	if attachment, ok := namedAttachment(in.EmbedURI); ok {
		if draft.InvalidAsset, err = h.checkNamed(c, convo, attachment); err != nil {
			return err
		}
		draft.Also = attachments.Name(convo, attachment, c.caller, key)
	}
	sent, err := send(c.ctx, draft)
	if err != nil {
		return err
	}
	c.replayed = sent.Replayed
	return c.reply(&mlsapi.SendMessageOutput{
		MessageID: sent.ID.String(), ReceivedAt: lexcodec.NewDatetime(sent.At), Seq: &sent.Seq, Epoch: &sent.Epoch,
	})
}

// propose sends a proposal in clear, of a member or of an external sender: a caller that is not a
// member, but is in the group's list. Such a request is rare and expensive, because the proposal is
// judged against the whole group, and has its own transaction.
func (h *handlers) propose(ctx context.Context, d messages.Draft) (sent messages.Receipt, err error) {
	if d.Token != nil {
		if err := d.Token.Use(ctx); err != nil {
			return sent, err
		}
	}
	var failure error // the error of the function below: if it is set, no COMMIT was tried
	err = pgx.BeginFunc(ctx, h.DB, func(tx pgx.Tx) error {
		sent, failure = convos.Propose(ctx, tx, d)
		return failure
	})
	if err != nil && failure == nil && pgpool.OutcomeUnknown(err) {
		err = fmt.Errorf("%w: %w", idem.ErrUnknownOutcome, err)
	}
	if err != nil {
		d.Quota.Return()
		return sent, err
	}
	h.Committed()
	return sent, nil
}

// messageHeader reads the header of the ciphertext. The request's epoch must equal the header's
// epoch. Application data is always a PrivateMessage (RFC 9420 §6). A proposal may be public; then
// its sender may be external. Commits have their own methods.
func messageHeader(in *mlsapi.SendMessageInput) (mls.Header, error) {
	h, err := mls.ParseHeader(in.Ciphertext)
	switch {
	case errors.Is(err, mls.ErrTooLarge):
		return h, named(mlsapi.ErrMessageTooLarge, "ciphertext: "+err.Error())
	case err != nil:
		return h, named(mlsapi.ErrInvalidMessage, "ciphertext: "+err.Error())
	case h.ContentType == mls.ContentTypeCommit:
		return h, named(mlsapi.ErrInvalidMessage,
			"ciphertext: a commit is sent with addMembers, leaveConvo, submitCommit or processExternalCommit")
	case h.ContentType == mls.ContentTypeApplication && h.WireFormat != mls.WireFormatPrivateMessage:
		return h, named(mlsapi.ErrInvalidMessage, "ciphertext: application data must be a PrivateMessage (RFC 9420 §6)")
	case h.SenderType == mls.SenderTypeNewMemberProposal:
		return h, named(mlsapi.ErrInvalidMessage,
			"ciphertext: sender_type new_member_proposal: nobody can propose to add itself here; "+
				"a member adds others with addMembers, and a member's own device joins with processExternalCommit (RFC 9420 "+
				"§12.1.8.2)")
	case int64(h.Epoch) != in.Epoch:
		return h, named(mlsapi.ErrInvalidMessage, fmt.Sprintf("epoch is %d, and the ciphertext's own %d; send the "+
			"epoch that it was encrypted in", in.Epoch, h.Epoch))
	}
	return h, nil
}
