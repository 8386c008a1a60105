package client

import (
	"context"
	"encoding/json"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// comparePage is how many entries of the log rewind compares at once.
const comparePage = 100

// rewind sets a thread back to the last entry that both the phone and the server have. Later entries
// of the inbox become loose: when their bytes come back at another place, take finds them by their
// digest. They cannot be decrypted a second time.
func (p *Phone) rewind(ctx context.Context, thread *Thread) error {
	items, err := p.Inbox(thread.ConvoID)
	if err != nil {
		return err
	}
	common, last, err := p.common(ctx, thread, items)
	if err != nil {
		return err
	}
	changes := map[string][]byte{}
	for _, item := range items[common:] {
		changes[inboxName(thread.ConvoID, item.Seq)] = nil
		if err := p.writeItem(looseName(thread.ConvoID, item.Digest), item, changes); err != nil {
			return err
		}
	}
	thread.Rewound, thread.Last = true, last
	if common > 0 {
		thread.Cursor = items[common-1].Seq
	} else {
		thread.First, thread.Cursor = 0, 0
		if len(items) > 0 && items[0].Past && items[0].Commit {
			thread.AddedBy = items[0].Digest
		}
	}
	if err := p.openThread(thread, changes); err != nil {
		return err
	}
	return p.Save(changes)
}

// common counts the first entries of the inbox that the server's log has at the same place, and
// returns the id of the last one.
func (p *Phone) common(ctx context.Context, thread *Thread, items []history.Item) (n int, last string, err error) {
	for after := thread.First - 1; n < len(items); {
		answer, err := p.Net.Do(ctx, p.Account, xrpc.MessagesCall(thread.ConvoID, "all", max(after, 0), comparePage))
		if err != nil {
			return 0, "", err
		}
		page, err := mlsapi.DecodeGetMessagesOutput(answer.Body)
		if err != nil {
			return 0, "", fmt.Errorf("%s: getMessages: %w", p.Name, err)
		}
		for i := range page.Messages {
			if n == len(items) || !isAt(items[n], &page.Messages[i]) {
				return n, last, nil
			}
			n, last, after = n+1, page.Messages[i].ID, page.Messages[i].Seq
		}
		if page.Cursor == nil {
			break
		}
	}
	return n, last, nil
}

// isAt reports whether an entry of the log is the one that was read. Bytes that came back at the same
// place have another id.
func isAt(item history.Item, view *mlsapi.MessageView) bool {
	return item.Seq == view.Seq && (item.ID == view.ID || item.ID == "") && item.Digest == history.DigestOf(view.Ciphertext)
}

// looseName names the file of an entry that was read, and that the server has lost.
func looseName(convo string, d history.Digest) string {
	return fmt.Sprintf("%s%s/%x", loosePrefix, convo, d[:])
}

// Loose returns what the phone has read of a convo and the server's log does not have.
func (p *Phone) Loose(convo string) ([]history.Item, error) {
	return p.items(loosePrefix + convo + "/")
}

// takeLoose returns the loose entry with a digest, if there is one, which is loose no more.
func (p *Phone) takeLoose(convo string, d history.Digest, changes map[string][]byte) (item history.Item, ok bool, err error) {
	name := looseName(convo, d)
	data, ok := p.Disk.Read(name)
	if !ok {
		return item, false, nil
	}
	changes[name] = nil
	return item, true, json.Unmarshal(data, &item)
}

// forgetLoose removes the loose entry with a text, which has come back in another ciphertext.
func (p *Phone) forgetLoose(convo, text string, changes map[string][]byte) error {
	loose, err := p.Loose(convo)
	for _, item := range loose {
		if !item.Commit && item.Text == text {
			changes[looseName(convo, item.Digest)] = nil
		}
	}
	return err
}
