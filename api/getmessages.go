package api

import (
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/messages"
	"mlsd/mls"
)

// kinds are the log entries that each value of the type parameter selects. Proposals come with the application messages: a
// client that knows nothing of this parameter needs them to follow the commits that refer to them.
var kinds = map[string][]mls.ContentType{
	"application": {mls.ContentTypeApplication, mls.ContentTypeProposal},
	"commit":      {mls.ContentTypeCommit},
	"all":         {mls.ContentTypeApplication, mls.ContentTypeProposal, mls.ContentTypeCommit},
}

// GetMessages: blue.catbird.mls.getMessages.
func (h *handlers) GetMessages(c *call, p *mlsapi.GetMessagesParams) error {
	convo, err := convoID(p.ConvoID)
	if err != nil {
		return err
	}
	member, err := convos.Authorise(c.ctx, h.db, convo, c.caller)
	if err != nil {
		return err
	}
	page := messages.Page{Window: member.Window, Limit: int(p.Limit), MaxBytes: maxPageBytes, Kinds: kinds[p.Type]}
	if p.SinceSeq != nil {
		page.After = *p.SinceSeq
	}
	if p.SinceMessage != nil {
		id, err := uuid.Parse(*p.SinceMessage)
		if err != nil {
			return messages.ErrInvalidCursor
		}
		after, err := messages.SeqOf(c.ctx, h.db, member.Window, id)
		if err != nil {
			return err
		}
		page.After = max(page.After, after)
	}
	found, more, err := messages.Read(c.ctx, h.db, page)
	if err != nil {
		return err
	}
	out := &mlsapi.GetMessagesOutput{Messages: make([]mlsapi.MessageView, len(found)), LastSeq: &member.Window.Last}
	for i := range found {
		out.Messages[i] = messageView(&found[i])
	}
	if more {
		last := found[len(found)-1].ID.String()
		out.Cursor = &last
	}
	return c.reply(out)
}

// messageView encodes a log entry.
func messageView(m *messages.Message) mlsapi.MessageView {
	kind, epoch := m.Kind.String(), m.Epoch
	if m.Kind == mls.ContentTypeCommit {
		epoch-- // the log has the epoch that a commit creates, this view the one it was made in, as its MLS header says
	}
	return mlsapi.MessageView{
		ID: m.ID.String(), ConvoID: m.ConvoID.String(), Sender: m.Sender, Ciphertext: m.Body, Epoch: epoch, Seq: m.Seq,
		CreatedAt: mlsapi.NewDatetime(m.CreatedAt), EmbedType: m.EmbedType, EmbedURI: m.EmbedURI, MessageType: &kind,
	}
}
