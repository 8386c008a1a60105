package api

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"mlsd/api/errorlist"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// errNoAttachments is the answer of the attachment methods on a node without a store for
// attachments.
var errNoAttachments = named(errorlist.MethodNotImplemented,
	"attachments are not set up here: the operator says in MLSD_ATTACHMENTS where they are kept (docs/SETTINGS.md)")

// attachment checks that the caller is a member of the convo, and parses the ids in the request.
func (h *handlers) attachment(ctx context.Context, c *call, q pgpool.Queryer, convoText,
	text string) (w messages.Window, id uuid.UUID, err error) {
	if h.Attachments == nil {
		return w, id, errNoAttachments
	}
	convo, err := c.convoID(convoText)
	if err != nil {
		return w, id, err
	}
	m, err := convos.Authorise(ctx, q, convo, c.caller)
	return m.Window, attachments.ParseID(text), err
}

// maxPredecessors is how many earlier convos, each closed by a reset, are searched for an
// attachment.
const maxPredecessors = 16

// acrossResets calls read with the caller's window of a convo. If the convo has no such attachment,
// acrossResets goes on with the convo's predecessors, as long as the caller is a member of them.
func acrossResets(ctx context.Context, c *call, q pgpool.Queryer, w messages.Window,
	read func(messages.Window) error) error {
	err := read(w)
	for n := 0; errors.Is(err, attachments.ErrNotFound) && n < maxPredecessors; n++ {
		before, ok, failed := convos.Predecessor(ctx, q, w.ConvoID, c.caller)
		if failed != nil {
			return failed
		}
		if !ok {
			return err
		}
		w = before
		err = read(w)
	}
	return err
}

// namedAttachment returns the attachment that a message's embedUri names. A message that names none
// costs nothing here.
func namedAttachment(uri *string) (id uuid.UUID, ok bool) {
	if uri == nil || !strings.HasPrefix(*uri, "mlsd:") {
		return uuid.Nil, false
	}
	return attachments.Named(*uri)
}

// checkNamed checks the attachment that a message names. If invalid is not nil, the message is
// refused, unless it was sent before. checkNamed needs no store for attachments, because even a
// node without a store accepts such messages.
func (h *handlers) checkNamed(c *call, convo, id uuid.UUID) (invalid, err error) {
	m, err := convos.Authorise(c.ctx, h.DB, convo, c.caller)
	if errors.Is(err, convos.ErrNotFound) || errors.Is(err, convos.ErrNotMember) {
		return messages.ErrInvalidAsset, nil // messages.judge checks the membership before this error
	}
	if err == nil {
		err = acrossResets(c.ctx, c, h.DB, m.Window, func(w messages.Window) error {
			return attachments.CanName(c.ctx, h.DB, w, id)
		})
	}
	if errors.Is(err, attachments.ErrNotFound) {
		return messages.ErrInvalidAsset, nil
	}
	return nil, err
}
