package api

import (
	"encoding/base64"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/messages"
	"mlsd/mls"
)

// selections are the log entries that each value of the type parameter selects. Proposals come with the application messages: a
// client that knows nothing of this parameter needs them to follow the commits that refer to them.
var selections = map[string]messages.Selection{
	mlsapi.GetMessagesParamsTypeApplication: messages.NoCommits,
	mlsapi.GetMessagesParamsTypeCommit:      messages.CommitsOnly,
	mlsapi.GetMessagesParamsTypeAll:         messages.Everything,
}

// GetMessages: blue.catbird.mls.getMessages.
func (h *handlers) GetMessages(c *call, p *mlsapi.GetMessagesParams) error {
	convo, err := convoID(p.ConvoID)
	if err != nil {
		return err
	}
	page := messages.Page{ConvoID: convo, Reader: c.caller, Entries: selections[p.Type], Limit: int(p.Limit), MaxBytes: maxPageBytes}
	if p.SinceSeq != nil {
		page.After = *p.SinceSeq
	}
	if p.SinceMessage != nil {
		id, err := uuid.Parse(*p.SinceMessage)
		if err != nil {
			id = uuid.Nil // no message's, but whether there is a convo is for the database to say first
		}
		page.Behind = &id
	}
	answer, view := c.list(), mlsapi.MessageView{ConvoID: p.ConvoID}
	end, err := messages.Read(c.ctx, h.db, page, func(m *messages.Message) bool {
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

// shownBytes is what a log entry usually takes beside its ciphertext, in bytes.
const shownBytes = 400

// messageView encodes a log entry.
func messageView(m *messages.Message) mlsapi.MessageView {
	v := mlsapi.MessageView{ConvoID: m.ConvoID.String()}
	showMessage(&v, m)
	return v
}

// kindTexts are what the kinds of log entries are called.
var kindTexts = func() (texts [mls.ContentTypeCommit + 1]string) {
	for k := range texts {
		texts[k] = mls.ContentType(k).String()
	}
	return texts
}()

// showMessage sets v to a log entry, but for the convo's id, which v has.
func showMessage(v *mlsapi.MessageView, m *messages.Message) {
	v.ID, v.Sender, v.Ciphertext, v.Epoch, v.Seq = m.ID.String(), m.Sender, m.Body, m.Epoch, m.Seq
	v.CreatedAt, v.EmbedType, v.EmbedURI, v.MessageType = mlsapi.NewDatetime(m.CreatedAt), m.EmbedType, m.EmbedURI, &kindTexts[m.Kind]
	if m.Kind == mls.ContentTypeCommit {
		v.Epoch-- // the log has the epoch that a commit creates, this view the one it was made in, as its MLS header says
	}
}
