package testbed

import (
	"bytes"
	"cmp"
	"context"
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
// with the same history have the same one.
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
// and the default pages by cursor in small ones.
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
