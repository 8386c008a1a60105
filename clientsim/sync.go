package clientsim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Item is one entry of a convo's log as a phone has read it.
type Item struct {
	Seq    int64      `json:"seq"`
	ID     string     `json:"id"`
	Commit bool       `json:"commit,omitempty"`
	Own    bool       `json:"own,omitempty"`
	Past   bool       `json:"past,omitempty"` // from before this device was in the group: it has no key
	Sender syntax.DID `json:"sender"`         // from the MLS message itself; for an own one, this account
	Text   string     `json:"text,omitempty"`
}

// pageSize is small, so that a scenario of a few messages reads several pages.
const pageSize = 7

// Sync reads the log from where this phone stopped, and decrypts it. Each page
// is one write: ratchets, cursor and plaintexts move together, so that a
// killed app reads a page again with the secrets that it needs for it.
func (p *Phone) Sync(ctx context.Context, convo string) error {
	for {
		thread, _, err := p.open(convo)
		if err != nil {
			return err
		}
		answer, err := p.net.Do(ctx, p.Account, messagesCall(convo, "all", thread.Cursor, pageSize))
		if err != nil {
			return err
		}
		page, err := mlsapi.DecodeGetMessagesOutput(answer.Body)
		if err != nil {
			return fmt.Errorf("%s: getMessages: %w", p.Name, err)
		}
		if err := p.takePage(thread, page.Messages); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if page.Cursor == nil {
			return nil
		}
		if len(page.Messages) == 0 {
			return fmt.Errorf("%s: an empty page with a cursor", p.Name)
		}
	}
}

func (p *Phone) takePage(thread *Thread, page []mlsapi.MessageView) error {
	if len(page) == 0 {
		return nil
	}
	changes := map[string][]byte{}
	for i := range page {
		item, err := p.take(thread, &page[i])
		if err != nil {
			return fmt.Errorf("seq %d: %w", page[i].Seq, err)
		}
		data, err := json.Marshal(item)
		if err != nil {
			return err
		}
		changes[fmt.Sprintf("%s%s/%012d", inboxPrefix, thread.ConvoID, item.Seq)] = data
	}
	if err := p.openThread(thread, changes); err != nil {
		return err
	}
	return p.save(changes)
}

// take reads one entry. A phone believes nothing: the seq has to be the next
// one, and what an entry is follows from its own bytes.
func (p *Phone) take(thread *Thread, view *mlsapi.MessageView) (Item, error) {
	switch {
	case thread.First == 0:
		thread.First = view.Seq
	case view.Seq != thread.Cursor+1:
		return Item{}, fmt.Errorf("a gap: it follows %d", thread.Cursor)
	}
	item := Item{Seq: view.Seq, ID: view.ID, Sender: view.Sender}
	if text, ok := p.disk.Read(ownName(sha256.Sum256(view.Ciphertext))); ok {
		item.Own, item.Text = true, string(text)
		thread.Cursor = view.Seq
		return item, nil
	}
	epoch, err := headerEpoch(view.Ciphertext)
	if err != nil {
		return Item{}, err
	}
	if epoch < thread.Entered {
		// What its account had before, up to the commit that brought this device
		// in: it came into the group behind it.
		item.Past = true
		thread.Cursor = view.Seq
		return item, nil
	}
	_, group, err := p.open(thread.ConvoID)
	if err != nil {
		return Item{}, err
	}
	got, err := group.Process(view.Ciphertext)
	if err != nil {
		return Item{}, err
	}
	item.Commit, item.Own, item.Text = got.Commit, got.Own, string(got.Plaintext)
	if !got.Commit {
		item.Sender = syntax.DID(got.Sender)
		p.stats.Delivered.Add(1)
	}
	thread.Cursor = view.Seq
	return item, nil
}

// Inbox returns what the phone has read of a convo, in order.
func (p *Phone) Inbox(convo string) ([]Item, error) {
	var items []Item
	for _, name := range p.disk.List(inboxPrefix + convo + "/") {
		data, _ := p.disk.Read(name)
		var item Item
		if err := json.Unmarshal(data, &item); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.Name, name, err)
		}
		items = append(items, item)
	}
	return items, nil
}

// MarkRead tells the server that this account has read the convo up to seq, and
// believes no answer but the largest seq that it ever told.
func (p *Phone) MarkRead(ctx context.Context, convo string, seq int64) error {
	answer, err := p.net.Do(ctx, p.Account, cursorCall(convo, seq))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeUpdateCursorOutput(answer.Body)
	if err != nil {
		return fmt.Errorf("%s: updateCursor: %w", p.Name, err)
	}
	if err := p.model.MarkedRead(convo, p.Account.DID, seq, out.Seq); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}
