package api

import (
	"encoding/base64"

	"github.com/google/uuid"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/messages"
	"mlsd/mls"
)

// selections maps each value of the messageType parameter to the log entries that it selects.
// Proposals come with the application messages: a client that does not use the parameter needs
// them, because commits refer to proposals.
var selections = map[string]messages.Selection{
	mlsapi.GetMessagesParamsMessageTypeApplication: messages.NoCommits,
	mlsapi.GetMessagesParamsMessageTypeCommit:      messages.CommitsOnly,
	mlsapi.GetMessagesParamsMessageTypeAll:         messages.Everything,
}

// GetMessages: blue.catbird.mls.getMessages.
func (h *handlers) GetMessages(c *call, p *mlsapi.GetMessagesParams) error {
	convo, err := c.convoID(p.ConvoID)
	if err != nil {
		return err
	}
	var large place
	defer large.release()
	page := messages.Page{
		ConvoID: convo, Reader: c.caller, Entries: selections[p.MessageType], Limit: int(p.Limit), MaxBytes: maxPageBytes,
		After: or(p.SinceSeq, 0), Former: or(p.UntilLeft, false),
		SmallBytes: smallPage, Large: func() (int64, error) { return h.largePage(c, &large) },
	}
	if p.SinceMessage != nil {
		id, err := uuid.Parse(*p.SinceMessage)
		if err != nil {
			id = uuid.Nil // no message has this id; the database checks first whether the convo exists
		}
		page.Behind = &id
	}
	answer, view := c.list(), mlsapi.MessageView{ConvoID: p.ConvoID}
	end, err := messages.Read(c.ctx, c.db, page, func(m *messages.Message) bool {
		id := view.ID
		showMessage(&view, m)
		if !answer.add(&view, shownBytes+base64.RawStdEncoding.EncodedLen(len(m.Body))) {
			view.ID = id
			return false
		}
		return true
	})
	if err != nil {
		return err
	}
	out := &mlsapi.GetMessagesOutput{LastSeq: &end.LastSeq}
	if end.More {
		out.Cursor = &view.ID
	}
	return c.replyList(answer, out)
}

// shownBytes is the usual size of a log entry without its ciphertext, in bytes.
const shownBytes = 400

// messageView encodes a log entry.
func messageView(m *messages.Message) mlsapi.MessageView {
	v := mlsapi.MessageView{ConvoID: m.ConvoID.String()}
	showMessage(&v, m)
	return v
}

// kindTexts are the names of the kinds of log entries.
var kindTexts = func() (texts [messages.KindReset + 1]string) {
	for k := range texts {
		texts[k] = mls.ContentType(k).String()
	}
	texts[messages.KindReset] = mlsapi.MessageViewMessageTypeReset
	return texts
}()

// showMessage sets v to a log entry. v already has the convo's id.
func showMessage(v *mlsapi.MessageView, m *messages.Message) {
	v.ID, v.Sender, v.Ciphertext, v.Epoch, v.Seq = m.ID.String(), m.Sender, m.Body, m.Epoch, m.Seq
	v.CreatedAt, v.EmbedType, v.EmbedURI, v.MessageType = lexcodec.NewDatetime(m.CreatedAt), m.EmbedType, m.EmbedURI,
		&kindTexts[m.Kind]
	if m.Kind == mls.ContentTypeCommit {
		// The log has the epoch that the commit creates. This view shows the epoch in the commit's
		// MLS header, which is the epoch before.
		v.Epoch--
	}
}
