package client

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// pageSize is small, so that even a few messages take several pages.
const pageSize = 7

// Sync reads the log from where this phone stopped, and decrypts it. Each page is one write of
// ratchets, cursor and plaintexts. A killed app reads the page again, and still has the secrets for
// it.
func (p *Phone) Sync(ctx context.Context, convo string) error {
	for {
		thread, _, err := p.Open(convo)
		if err != nil {
			return err
		}
		answer, err := p.Net.Do(ctx, p.Account, xrpc.MessagesCall(convo, "all", thread.Cursor, pageSize))
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
	return p.Save(changes)
}

// take reads one entry. It trusts no field: the seq must be the next one, and the entry's own bytes
// say what it is.
func (p *Phone) take(thread *Thread, view *mlsapi.MessageView) (history.Item, error) {
	switch {
	case thread.First == 0:
		thread.First = view.Seq
	case view.Seq != thread.Cursor+1:
		return history.Item{}, fmt.Errorf("a gap: it follows %d", thread.Cursor)
	}
	item := history.Item{Seq: view.Seq, ID: view.ID, Sender: view.Sender}
	if text, ok := p.Disk.Read(ownName(sha256.Sum256(view.Ciphertext))); ok {
		item.Own, item.Text = true, string(text)
		thread.Cursor = view.Seq
		return item, nil
	}
	epoch, err := mlsclient.HeaderEpoch(view.Ciphertext)
	if err != nil {
		return history.Item{}, err
	}
	if epoch < thread.Entered {
		// This entry is older than the commit that added this device.
		item.Past = true
		thread.Cursor = view.Seq
		return item, nil
	}
	_, group, err := p.Open(thread.ConvoID)
	if err != nil {
		return history.Item{}, err
	}
	got, err := group.Process(view.Ciphertext)
	if err != nil {
		return history.Item{}, err
	}
	item.Commit, item.Own, item.Text = got.Commit, got.Own, string(got.Plaintext)
	if got.Proposal {
		item.Text = ProposalText(view.Ciphertext)
	}
	if !got.Commit {
		item.Sender = syntax.DID(got.Sender)
		p.stats.Delivered.Add(1)
	}
	thread.Cursor = view.Seq
	return item, nil
}

// Inbox returns what the phone has read of a convo, in order.
func (p *Phone) Inbox(convo string) ([]history.Item, error) {
	var items []history.Item
	for _, name := range p.Disk.List(inboxPrefix + convo + "/") {
		data, _ := p.Disk.Read(name)
		var item history.Item
		if err := json.Unmarshal(data, &item); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.Name, name, err)
		}
		items = append(items, item)
	}
	return items, nil
}

// MarkRead tells the server that this account has read the convo up to seq. The answer must be the
// largest seq that the account ever reported.
func (p *Phone) MarkRead(ctx context.Context, convo string, seq int64) error {
	atLeast := p.Model.MarksRead(convo, p.Account.DID, seq)
	answer, err := p.Net.Do(ctx, p.Account, xrpc.CursorCall(convo, seq))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeUpdateCursorOutput(answer.Body)
	if err != nil {
		return fmt.Errorf("%s: updateCursor: %w", p.Name, err)
	}
	if err := p.Model.MarkedRead(convo, p.Account.DID, atLeast, out.Seq); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// MarkReadBehind reports the phone's place in the log minus back entries.
func (p *Phone) MarkReadBehind(ctx context.Context, convo string, back int64) error {
	thread, _, err := p.Open(convo)
	if err != nil {
		return err
	}
	return p.MarkRead(ctx, convo, max(thread.Cursor-back, 0))
}
