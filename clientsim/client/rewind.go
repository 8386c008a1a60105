package client

import (
	"context"
	"encoding/json"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// rewind sets a thread back to the last entry that both the phone and the server have. Later entries
// of the inbox become loose: when their bytes come back at another place, take finds them by their
// digest. They cannot be decrypted a second time.
func (p *Phone) rewind(ctx context.Context, thread *Thread) (err error) {
	defer Catch(&err)
	items := Must(p.Inbox(thread.ConvoID))
	common := Must(p.common(ctx, thread, items))
	changes := map[string][]byte{}
	for _, item := range items[common:] {
		changes[inboxName(thread.ConvoID, item.Seq)] = nil
		Check(p.writeItem(looseName(thread.ConvoID, item.Digest), item, changes))
	}
	for _, name := range p.Disk.List(seenPrefix + thread.ConvoID + "/") {
		changes[name] = nil
	}
	thread.Rewound = true
	if common > 0 {
		thread.Cursor, thread.Last = items[common-1].Seq, items[common-1].ID
	} else {
		thread.First, thread.Cursor, thread.Last = 0, 0, ""
		if len(items) > 0 && items[0].Past && items[0].Commit {
			thread.AddedBy = items[0].Digest
		}
	}
	Check(p.openThread(thread, changes))
	return p.Save(changes)
}

// common counts the first entries of the inbox that the server still has. If it has one, it has all
// before it.
func (p *Phone) common(ctx context.Context, thread *Thread, items []history.Item) (n int, err error) {
	defer Catch(&err)
	low, high := 0, len(items) // the server has those below low, and not those from high on
	for low < high {
		middle := (low + high) / 2
		has := Must(p.serverHas(ctx, thread.ConvoID, items[middle]))
		if has {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// serverHas asks whether the server has an entry at the place where it was read. An entry that came
// back at the same place has another id.
func (p *Phone) serverHas(ctx context.Context, convo string, item history.Item) (bool, error) {
	call := xrpc.MessagesSinceCall(convo, "all", item.ID, 1)
	if item.ID == "" { // its own external commit, which it has not read
		call = xrpc.MessagesCall(convo, "all", item.Seq-1, 1)
	}
	answer, err := p.Net.Do(ctx, p.Account, call)
	if xrpc.ErrorName(err) == mlsapi.ErrInvalidCursor {
		return false, nil
	}
	if err != nil || item.ID != "" {
		return err == nil, err
	}
	page, err := xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body)
	if err != nil {
		return false, fmt.Errorf("%s: getMessages: %w", p.Name, err)
	}
	return len(page.Messages) == 1 && page.Messages[0].Seq == item.Seq &&
		history.DigestOf(page.Messages[0].Ciphertext) == item.Digest, nil
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
func (p *Phone) takeLoose(convo string, d history.Digest, changes map[string][]byte) (item history.Item, ok bool,
	err error) {
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
