package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
)

// pageSize is small, so that even a few messages take several pages.
const pageSize = 7

// Sync reads the log from where this phone stopped, and decrypts it. Each page is one write of
// ratchets, cursor and plaintexts. A killed app reads the page again, and still has the secrets for
// it. If the server has lost entries that the phone has read, the phone goes back to the last entry
// that both have: see rewind. Error: ErrForked.
func (p *Phone) Sync(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	for {
		thread, _ := Must2(p.Open(convo))
		page, behind, err := p.nextPage(ctx, thread)
		if err == nil && behind {
			if err = p.rewind(ctx, thread); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		Check(errs.Wrap(p.takePage(thread, page.Messages), "%s", p.Name))
		if page.Cursor == nil {
			return p.verify(ctx, thread)
		}
		if len(page.Messages) == 0 {
			return fmt.Errorf("%s: an empty page with a cursor", p.Name)
		}
	}
}

// nextPage asks for the entries after the last entry that the phone has read. It names that entry
// by its id, so that the server notices if it has lost the entry. Then behind is true.
func (p *Phone) nextPage(ctx context.Context, thread *Thread) (page *mlsapi.GetMessagesOutput, behind bool, err error) {
	call := xrpc.MessagesCall(thread.ConvoID, "all", thread.Cursor, pageSize)
	if thread.Last != "" { // "" after the phone's own external commit, which it does not read
		call = xrpc.MessagesSinceCall(thread.ConvoID, "all", thread.Last, pageSize)
	}
	answer, err := p.Net.Do(ctx, p.Account, call)
	if xrpc.ErrorName(err) == mlsapi.ErrInvalidCursor {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	if page, err = xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body); err != nil {
		return nil, false, fmt.Errorf("%s: getMessages: %w", p.Name, err)
	}
	return page, page.LastSeq != nil && *page.LastSeq < thread.Cursor, nil
}

// ErrForked says that the log has another commit in an epoch that this device has left. The server
// has lost the commit by which the device left. The device must enter the group again: see Rejoin.
var ErrForked = errors.New("clientsim: another commit has taken the epoch")

// takePage keeps the entries before a fork, or before a commit that the device cannot process.
func (p *Phone) takePage(thread *Thread, page []mlsapi.MessageView) (err error) {
	defer Catch(&err)
	if len(page) == 0 {
		return nil
	}
	changes := map[string][]byte{}
	var forked error
	for i := range page {
		item, err := p.take(thread, &page[i], changes)
		if failed := new(CommitError); errors.Is(err, ErrForked) || errors.As(err, &failed) {
			forked = fmt.Errorf("seq %d: %w", page[i].Seq, err)
			thread.Stuck = !errors.Is(err, ErrForked)
			break
		}
		if err != nil {
			return fmt.Errorf("seq %d: %w", page[i].Seq, err)
		}
		Check(p.writeItem(inboxName(thread.ConvoID, item.Seq), item, changes))
		if p.Verifies {
			changes[seenName(thread.ConvoID, item.Seq)] = Must(json.Marshal(seen(&page[i])))
		}
		thread.First = cmp.Or(thread.First, item.Seq)
		thread.Cursor, thread.Last = item.Seq, item.ID
	}
	Check(p.openThread(thread, changes))
	return errors.Join(forked, p.Save(changes))
}

// inboxName names the file of an entry that was read.
func inboxName(convo string, seq int64) string {
	return fmt.Sprintf("%s%s/%012d", inboxPrefix, convo, seq)
}

// writeItem adds an entry to the files to be written.
func (p *Phone) writeItem(name string, item history.Item, changes map[string][]byte) error {
	data, err := json.Marshal(item)
	changes[name] = data
	return err
}

// take reads one entry. It trusts no field: the seq must be the next one, and the entry's own bytes
// say what it is.
func (p *Phone) take(thread *Thread, view *mlsapi.MessageView, changes map[string][]byte) (_ history.Item, err error) {
	defer Catch(&err)
	if thread.First != 0 && view.Seq != thread.Cursor+1 {
		return history.Item{}, fmt.Errorf("a gap: it follows %d", thread.Cursor)
	}
	item := history.Item{Seq: view.Seq, ID: view.ID, Sender: view.Sender, Digest: history.DigestOf(view.Ciphertext)}
	if added := thread.AddedBy; thread.First == 0 && added != (history.Digest{}) && added != item.Digest {
		return history.Item{}, ErrForked // the log begins with another addition of this device
	}
	if before, ok, err := p.takeLoose(thread.ConvoID, item.Digest, changes); err != nil || ok {
		before.Seq, before.ID = view.Seq, view.ID
		return before, err
	}
	if text, ok := p.Disk.Read(ownName(item.Digest)); ok {
		item.Own, item.Text, item.Data = true, string(text), binary(text)
		return item, nil
	}
	if xrpc.IsReset(view) {
		item.Text = string(view.Ciphertext)
		thread.Successor = successorIn(item.Text)
		return item, nil
	}
	epoch := Must(mlsclient.HeaderEpoch(view.Ciphertext))
	_, group := Must2(p.Open(thread.ConvoID))
	if thread.Rewound && xrpc.IsCommit(view) && epoch+1 >= thread.Entered && epoch < group.Epoch() {
		return history.Item{}, ErrForked
	}
	if epoch < thread.Entered || thread.Rewound && epoch < group.Epoch() {
		// This entry is older than the commit that added this device, or belongs to an epoch that the
		// device has left. MLS keeps no keys of such epochs.
		item.Past, item.Commit = true, xrpc.IsCommit(view)
		return item, nil
	}
	if thread.Stuck {
		return history.Item{}, &CommitError{Epoch: epoch + 1, Sender: view.Sender, Err: errors.New("it was tried before")}
	}
	present := group.Epoch() // the library can change the epoch although Process fails
	got, err := group.Process(view.Ciphertext)
	if err != nil && xrpc.IsCommit(view) && epoch == present {
		return history.Item{}, &CommitError{Epoch: epoch + 1, Sender: view.Sender, Err: err}
	}
	if err != nil {
		return history.Item{}, err
	}
	item.Commit, item.Own, item.Text, item.Data = got.Commit, got.Own, string(got.Plaintext), binary(got.Plaintext)
	if got.Proposal {
		item.Text = ProposalText(view.Ciphertext)
	}
	if !got.Commit {
		if got.Sender != "" { // it is empty for a proposal that the library refuses: see mlsclient.Received
			item.Sender = syntax.DID(got.Sender)
		}
		p.stats.Delivered.Add(1)
		err = p.forgetLoose(thread.ConvoID, item.Text, changes)
	}
	return item, err
}

// binary returns a plaintext that is not UTF-8, or nil.
func binary(plaintext []byte) []byte {
	if utf8.Valid(plaintext) {
		return nil
	}
	return plaintext
}

// Inbox returns what the phone has read of a convo, in order.
func (p *Phone) Inbox(convo string) ([]history.Item, error) {
	return p.items(inboxPrefix + convo + "/")
}

// items reads the entries in a folder of the disk, by name.
func (p *Phone) items(folder string) ([]history.Item, error) {
	var items []history.Item
	for _, name := range p.Disk.List(folder) {
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
func (p *Phone) MarkRead(ctx context.Context, convo string, seq int64) (err error) {
	defer Catch(&err)
	atLeast := p.Model.MarksRead(convo, p.Account.DID, seq)
	out := Must(ask[mlsapi.UpdateCursorOutput](ctx, p, xrpc.CursorCall(convo, seq)))
	Check(errs.Wrap(p.Model.MarkedRead(convo, p.Account.DID, atLeast, out.Seq), "%s", p.Name))
	return nil
}

// MarkReadBehind marks the convo as read up to the phone's place in the log minus back entries.
func (p *Phone) MarkReadBehind(ctx context.Context, convo string, back int64) (err error) {
	defer Catch(&err)
	thread, _ := Must2(p.Open(convo))
	return p.MarkRead(ctx, convo, max(thread.Cursor-back, 0))
}

// LogReader checks the log of a convo for a member, without MLS. It is safe for concurrent use.
type LogReader struct {
	convo string
	mu    sync.Mutex // guards the fields below
	p     *Phone     // only its account and server are used
	v     *verifier.Verifier
}

// NewLogReader returns a reader that has read nothing.
func NewLogReader(account *xrpc.Account, convo string) *LogReader {
	return &LogReader{convo: convo, p: &Phone{Name: "log reader", Account: account}}
}

// Read reads the new entries from one of the servers, and asks that server for a head. It returns
// how many entries were checked so far. The error is a *verifier.Lie or a *verifier.WentBack: after
// any other failure, the next Read tries again.
func (r *LogReader) Read(ctx context.Context, server *xrpc.Client) (checked int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p.Net = server
	if r.v == nil {
		r.v = r.p.newVerifier(r.convo)
	}
	err = r.p.readAgain(ctx, r.v, &Thread{ConvoID: r.convo})
	if errors.As(err, new(*verifier.Lie)) || errors.As(err, new(*verifier.WentBack)) {
		return r.v.Size(), err
	}
	return r.v.Size(), nil
}
