package testbed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// maxReplays is how many acknowledged writes are sent again after a scenario.
const maxReplays = 60

// Check checks every promise that clients can see, over a network without faults. Phones deliver
// and read what is left. Acknowledged writes are sent again. Every member's view is compared with
// the model and with the other members. Every account's list of convos is compared too. Outsiders
// must be refused. In the end, a server of our own checks its database.
func (w *World) Check(ctx context.Context) {
	w.Faults.Use(nil)
	for _, c := range w.Model.Snapshot() {
		w.finishPhones(ctx, &c)
	}
	w.replayWrites(ctx)
	views := map[string]map[syntax.DID]*history.View{}
	for _, c := range w.Model.Snapshot() {
		views[c.ID] = w.checkConvo(ctx, &c)
	}
	w.checkLists(ctx, views)
	w.Report(w.ledger.Violations()...)
	w.Attempt(func() { w.checkDatabase(ctx) })
}

// membersOf returns the phones of present members that have joined.
func (w *World) membersOf(c *history.ConvoModel) []*client.Phone {
	return slices.DeleteFunc(slices.Clone(w.phones), func(p *client.Phone) bool {
		_, joined := p.Threads[c.ID]
		return !joined || !w.Model.Live(c.ID, p.Account.DID)
	})
}

func (w *World) finishPhones(ctx context.Context, c *history.ConvoModel) {
	for _, p := range w.phones {
		if p.Device != nil {
			continue
		}
		if err := p.Launch(); err != nil {
			w.Broken("%s does not start again: %v", p.Name, err)
		}
	}
	for _, p := range w.membersOf(c) {
		if err := p.Flush(ctx); err != nil {
			w.Broken("%s cannot deliver its outbox: %v", p.Name, err)
		}
	}
	for _, p := range w.membersOf(c) {
		if err := p.Sync(ctx, c.ID); err != nil {
			w.Broken("%s cannot read convo %s: %v", p.Name, c.ID, err)
		}
	}
}

// replayWrites sends acknowledged writes again. Each must get its first answer, whatever happened
// to the epoch or the caller since then. The ledger compares the answers.
func (w *World) replayWrites(ctx context.Context) {
	calls := w.Model.AcknowledgedCalls()
	w.RNG.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, s := range calls[:min(len(calls), maxReplays)] {
		answer, err := w.Net.Do(ctx, s.Who, s.Call)
		switch {
		case err != nil:
			w.Broken("asked again: %v", err)
		case !answer.Replayed():
			w.Broken("%s asked again is answered as if for the first time", s.Call.Method)
		}
	}
}

// checkConvo checks one convo, and returns what its members see of it.
func (w *World) checkConvo(ctx context.Context, c *history.ConvoModel) map[syntax.DID]*history.View {
	members := w.membersOf(c)
	views := map[syntax.DID]*history.View{}
	for _, p := range members {
		v, err := w.view(ctx, p, c)
		if err != nil {
			w.Broken("%s cannot see convo %s: %v", p.Name, c.ID, err)
			continue
		}
		views[v.DID] = v
		w.Report(history.CheckView(c, v)...)
		w.Attempt(func() { w.checkDevice(p, c, v) })
		w.Attempt(func() { w.checkRoster(ctx, p, c, v) })
		w.Attempt(func() { w.checkTree(ctx, p, c, v) })
	}
	if len(members) > 0 {
		w.Attempt(func() { w.checkAgreement(c, members) })
		w.Attempt(func() { w.checkOutsiders(ctx, c, members) })
	}
	return views
}

// checkDevice checks that the phone is in the server's epoch. Only the inboxes show that nothing
// decrypts twice: the library does not store which keys of an epoch it has used.
func (w *World) checkDevice(p *client.Phone, c *history.ConvoModel, v *history.View) {
	if group := Must(p.Group(c.ID)); int64(group.Epoch()) != v.Epoch {
		w.Broken("%s is in epoch %d and the server in %d", p.Name, group.Epoch(), v.Epoch)
	}
}

// checkAgreement checks that all present members have the same epoch authenticator. Only members
// with the same history have the same authenticator.
func (w *World) checkAgreement(c *history.ConvoModel, members []*client.Phone) {
	var first []byte
	for _, p := range members {
		own := Must(p.Group(c.ID)).Authenticator()
		if first == nil {
			first = own
		}
		if !bytes.Equal(first, own) {
			w.Report(history.Violation{Kind: history.Broken, Convo: c.ID, Who: p.Name,
				What: "another epoch authenticator than " + members[0].Name})
		}
	}
}

// view fetches everything that a member can see, in two ways: the whole log by seq in large pages,
// and the default messages by cursor in small pages.
func (w *World) view(ctx context.Context, p *client.Phone, c *history.ConvoModel) (_ *history.View, err error) {
	defer Catch(&err)
	thread, _ := Must2(p.Open(c.ID))
	v := Must(w.ViewBy(ctx, w.Net, p.Name, p.Account, c.ID))
	v.Entered = thread.Entered
	v.Inbox, err = p.Inbox(c.ID)
	return v, err
}

// ViewBy fetches what a member can see of a convo, without what its phone decrypted. name is for
// the report.
func (w *World) ViewBy(ctx context.Context, c *xrpc.Client, name string, who *xrpc.Account,
	convo string) (v *history.View, err error) {
	defer Catch(&err)
	v = &history.View{Who: name, DID: who.DID}
	v.Log, v.LastSeq = Must2(w.wholeLog(ctx, c, who, convo))
	v.Apps, _ = Must2(w.pages(ctx, c, who, func(last *mlsapi.MessageView) xrpc.Call {
		if last == nil {
			return xrpc.MessagesSinceCall(convo, "", "", 9)
		}
		return xrpc.MessagesSinceCall(convo, "", last.ID, 9)
	}))
	return v, w.epochView(ctx, c, who, convo, v)
}

// wholeLog reads a convo's log by seq, in large pages, and returns its last seq.
func (w *World) wholeLog(ctx context.Context, c *xrpc.Client, who *xrpc.Account, convo string) ([]mlsapi.MessageView,
	int64, error) {
	return w.pages(ctx, c, who, func(last *mlsapi.MessageView) xrpc.Call {
		if last == nil {
			return xrpc.MessagesCall(convo, "all", 0, 100)
		}
		return xrpc.MessagesCall(convo, "all", last.Seq, 100)
	})
}

func (w *World) epochView(ctx context.Context, c *xrpc.Client, who *xrpc.Account, convo string,
	v *history.View) (err error) {
	defer Catch(&err)
	epoch := Must(xrpc.Ask[mlsapi.GetEpochOutput](ctx, c, who, xrpc.EpochCall(convo)))
	v.Epoch = epoch.CurrentEpoch
	first := slices.IndexFunc(v.Log, func(m mlsapi.MessageView) bool { return xrpc.IsCommit(&m) })
	if first < 0 {
		return nil // fromEpoch would be after the current epoch
	}
	from := Must(mlsclient.HeaderEpoch(v.Log[first].Ciphertext))
	for next := int64(from) + 1; next <= v.Epoch; { // a long answer stops before the last epoch
		commits := Must(xrpc.Ask[mlsapi.GetCommitsOutput](ctx, c, who, xrpc.CommitsCall(convo, uint64(next)))).Commits
		if len(commits) == 0 {
			break
		}
		v.Commits = append(v.Commits, commits...)
		next = commits[len(commits)-1].Epoch + 1
	}
	slices.SortStableFunc(v.Commits, func(a, b mlsapi.CommitView) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return nil
}

// pages reads a list to its end. next makes the call for the page after the last entry.
func (w *World) pages(
	ctx context.Context, c *xrpc.Client, who *xrpc.Account, next func(*mlsapi.MessageView) xrpc.Call,
) (_ []mlsapi.MessageView, _ int64, err error) {
	defer Catch(&err)
	var all []mlsapi.MessageView
	var last *mlsapi.MessageView
	for {
		page := Must(xrpc.Ask[mlsapi.GetMessagesOutput](ctx, c, who, next(last)))
		if page.LastSeq == nil {
			return nil, 0, errors.New("getMessages without lastSeq")
		}
		all = append(all, page.Messages...)
		if page.Cursor == nil {
			return all, *page.LastSeq, nil
		}
		if len(page.Messages) == 0 {
			return nil, 0, fmt.Errorf("getMessages: an empty page with the cursor %q", *page.Cursor)
		}
		last = &all[len(all)-1]
		if *page.Cursor != last.ID {
			w.Broken("getMessages' cursor is %q, and its last id %q", *page.Cursor, last.ID)
		}
	}
}

// listPage is small, so that even a member of a few convos reads several pages.
const listPage = 2

// checkLists reads each account's convos in small pages and compares them with the model. Before
// that, it reports an older place in each convo as read. The report must not move the account's
// cursor back.
func (w *World) checkLists(ctx context.Context, views map[string]map[syntax.DID]*history.View) {
	convos := w.Model.Snapshot()
	for _, p := range w.accounts() {
		did := p.Account.DID
		want := map[string]history.ListEntry{}
		for _, c := range convos {
			m, was := c.Members[did]
			if !was || !m.Live {
				continue
			}
			if err := p.MarkRead(ctx, c.ID, 0); err != nil {
				w.Broken("%v", err)
			}
			want[c.ID] = history.ListEntry{GroupID: hex.EncodeToString(c.GroupID), Members: c.Live(), View: views[c.ID][did],
				Cursor: m.Cursor}
		}
		got, err := w.List(ctx, p)
		if err != nil {
			w.Broken("%s cannot list its convos: %v", p.Name, err)
			continue
		}
		w.Report(history.CheckList(p.Name, did, got, want)...)
	}
}

// accounts returns one phone of each account.
func (w *World) accounts() []*client.Phone {
	seen := map[syntax.DID]bool{}
	return slices.DeleteFunc(slices.Clone(w.phones), func(p *client.Phone) bool {
		again := seen[p.Account.DID]
		seen[p.Account.DID] = true
		return again
	})
}

// List reads getConvos to its end.
func (w *World) List(ctx context.Context, p *client.Phone) (_ []mlsapi.ConvoView, err error) {
	defer Catch(&err)
	var all []mlsapi.ConvoView
	cursor := ""
	for {
		page := Must(xrpc.Ask[mlsapi.GetConvosOutput](ctx, w.Net, p.Account, xrpc.ConvosCall(cursor, listPage)))
		if all = append(all, page.Conversations...); page.Cursor == nil {
			return all, nil
		}
		if len(page.Conversations) == 0 || *page.Cursor == cursor {
			return nil, fmt.Errorf("getConvos does not get on after the cursor %q", cursor)
		}
		cursor = *page.Cursor
	}
}

// The functions below check what the server says about the group of a convo: its roster, how far it
// could check the last commit, and the GroupInfo that it hands out.

// checkRoster checks that the server's members are those of the model, that each leaf belongs to
// the member that the server names, and that the commit level follows from the log.
func (w *World) checkRoster(ctx context.Context, p *client.Phone, c *history.ConvoModel, v *history.View) {
	convo := Must(p.Convo(ctx, c.ID))
	group := Must(p.Group(c.ID))
	var roster []syntax.DID
	for _, m := range convo.Members {
		roster = append(roster, m.DID)
		if m.LeafIndex != nil && !holds(group, *m.LeafIndex, m.DID) {
			w.Broken("getConvo says that leaf %d is %s's, in epoch %d of %s", *m.LeafIndex, m.DID, convo.Epoch, c.ID)
		}
	}
	slices.Sort(roster)
	if want := c.Live(); !slices.Equal(want, roster) {
		w.Broken("the roster of %s is %v, want %v", c.ID, roster, want)
	}
	level, _, known := c.Followed(v)
	if known && xrpc.Show(convo.CommitLevel) != xrpc.Show(&level) {
		w.Broken("the commit level of %s in epoch %d is %s, want %q", c.ID, convo.Epoch, xrpc.Show(convo.CommitLevel), level)
	}
}

// holds reports whether a leaf of the group belongs to a device of did.
func holds(group mlsclient.Group, leaf int64, did syntax.DID) bool {
	return slices.ContainsFunc(group.Leaves(), func(l mlsclient.Leaf) bool {
		return int64(l.Index) == leaf && l.Identity == did.String()
	})
}

// checkTree checks the GroupInfo that the server hands out. The GroupInfo must be of the present
// epoch and show the members' group. The server must have a GroupInfo if and only if the last
// commit came with one.
func (w *World) checkTree(ctx context.Context, p *client.Phone, c *history.ConvoModel, v *history.View) {
	_, sent, known := c.Followed(v)
	message, err := p.GroupInfo(ctx, c.ID)
	if xrpc.ErrorName(err) == mlsapi.ErrGroupInfoNotFound {
		if known && sent {
			w.Report(history.Violation{Kind: history.Lost, Convo: c.ID, Who: p.Name,
				What: "the GroupInfo that came with the last commit is not there"})
		}
		return
	}
	Check(err)
	if known && !sent {
		w.Broken("getGroupInfo knows a GroupInfo of %s that no phone has sent", c.ID)
	}
	info, group := Must(mlsclient.ReadInfo(message)), Must(p.Group(c.ID))
	same := slices.EqualFunc(info.Leaves, group.Leaves(), func(a, b mlsclient.Leaf) bool {
		return a.Index == b.Index && a.Identity == b.Identity && bytes.Equal(a.SignatureKey, b.SignatureKey)
	})
	if !bytes.Equal(info.GroupID, c.GroupID) || int64(info.Epoch) != v.Epoch || !same {
		w.Broken("getGroupInfo shows group %x in epoch %d with %d leaves, and %s has %x in %d with %d",
			info.GroupID, info.Epoch, len(info.Leaves), p.Name, c.GroupID, v.Epoch, len(group.Leaves()))
	}
}
