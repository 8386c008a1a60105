package api

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"mlsd/api/errorlist"
	"mlsd/convos"
	"mlsd/internal/attachments"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// errNoAttachments answers the methods of attachments on a node without a store.
var errNoAttachments = named(errorlist.MethodNotImplemented,
	"attachments are not set up here: the operator says in MLSD_ATTACHMENTS where they are kept (docs/SETTINGS.md)")

// attachment checks that the caller is a member of the convo, and parses the ids of an attachment.
func (h *handlers) attachment(ctx context.Context, c *call, q pgpool.Queryer, convoText,
	text string) (w messages.Window, id uuid.UUID, err error) {
	if h.attachments == nil {
		return w, id, errNoAttachments
	}
	convo, err := c.convoID(convoText)
	if err != nil {
		return w, id, err
	}
	m, err := convos.Authorise(ctx, q, convo, c.caller)
	return m.Window, attachments.ParseID(text), err
}

// namedAttachment returns the attachment that a message's embedUri names. It costs other messages
// nothing.
func namedAttachment(uri *string) (id uuid.UUID, ok bool) {
	if uri == nil || !strings.HasPrefix(*uri, "mlsd:") {
		return uuid.Nil, false
	}
	return attachments.Named(*uri)
}

// checkNamed checks the attachment that a message names. unfit refuses the message if it has not been
// sent already. It needs no store: a node that has none sends such messages too.
func (h *handlers) checkNamed(c *call, convo, id uuid.UUID) (unfit, err error) {
	m, err := convos.Authorise(c.ctx, h.db, convo, c.caller)
	if errors.Is(err, convos.ErrNotFound) || errors.Is(err, convos.ErrNotMember) {
		return messages.ErrInvalidAsset, nil // the message's own judgement comes first
	}
	if err == nil {
		err = attachments.CanName(c.ctx, h.db, m.Window, id)
	}
	if errors.Is(err, attachments.ErrNotFound) {
		return messages.ErrInvalidAsset, nil
	}
	return nil, err
}
