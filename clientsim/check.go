package clientsim

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// maxReplays bounds how many settled writes are asked again after a scenario.
const maxReplays = 60

// Check holds the server to every promise that can be seen from outside, with
// a network that works: phones deliver and read what is left, settled writes
// are asked again, every member's view is compared with the model and with its
// neighbours', every account's list of convos too, and outsiders are sent away.
// A server of our own is asked at last what it thinks of its database.
func (w *World) Check(ctx context.Context) {
	w.Faults.Use(nil)
	for _, c := range w.model.snapshot() {
		w.settlePhones(ctx, &c)
	}
	w.askAgain(ctx)
	views := map[string]map[syntax.DID]*view{}
	for _, c := range w.model.snapshot() {
		views[c.id] = w.checkConvo(ctx, &c)
	}
	w.checkLists(ctx, views)
	w.Report(w.ledger.Settle()...)
	w.checkDatabase(ctx)
}

// membersOf are the phones of live members that have joined.
func (w *World) membersOf(c *convoModel) []*Phone {
	return slices.DeleteFunc(slices.Clone(w.phones), func(p *Phone) bool {
		_, joined := p.threads[c.id]
		return !joined || !w.model.live(c.id, p.Account.DID)
	})
}

func (w *World) settlePhones(ctx context.Context, c *convoModel) {
	for _, p := range w.phones {
		if p.device != nil {
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
		if err := p.Sync(ctx, c.id); err != nil {
			w.Broken("%s cannot read convo %s: %v", p.Name, c.id, err)
		}
	}
}

// askAgain repeats settled writes: each has to be answered as the first time,
// whatever has become of the epoch or the caller since. The ledger compares.
func (w *World) askAgain(ctx context.Context) {
	calls := w.model.settledCalls()
	w.rng.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, s := range calls[:min(len(calls), maxReplays)] {
		answer, err := w.net.Do(ctx, s.who, s.call)
		switch {
		case err != nil:
			w.Broken("asked again: %v", err)
		case !answer.Replayed():
			w.Broken("%s asked again is answered as if for the first time", s.call.Method)
		}
	}
}

// checkConvo returns what the members see of the convo.
func (w *World) checkConvo(ctx context.Context, c *convoModel) map[syntax.DID]*view {
	members := w.membersOf(c)
	views := map[syntax.DID]*view{}
	for _, p := range members {
		v, err := w.view(ctx, p, c)
		if err != nil {
			w.Broken("%s cannot see convo %s: %v", p.Name, c.id, err)
			continue
		}
		views[v.did] = v
		w.Report(checkView(c, v)...)
		w.checkDevice(p, c, v)
		w.checkRoster(ctx, p, c, v)
		w.checkTree(ctx, p, c, v)
	}
	if len(members) > 0 {
		w.agreement(c, members)
		w.outsiders(ctx, c, members[0])
	}
	return views
}

// checkDevice: the phone is in the server's epoch. (That nothing decrypts twice
// is read from the inboxes: the library does not persist which generations it
// has used, so a restored device would decrypt anything of its epoch again.)
func (w *World) checkDevice(p *Phone, c *convoModel, v *view) {
	group, err := p.Group(c.id)
	if err != nil {
		w.Broken("%v", err)
		return
	}
	if int64(group.Epoch()) != v.epoch {
		w.Broken("%s is in epoch %d and the server in %d", p.Name, group.Epoch(), v.epoch)
	}
}

// agreement: all live members have the same epoch authenticator, which they
// can only have after the same history.
func (w *World) agreement(c *convoModel, members []*Phone) {
	var first []byte
	for _, p := range members {
		group, err := p.Group(c.id)
		if err != nil {
			w.Broken("%v", err)
			continue
		}
		if first == nil {
			first = group.Authenticator()
		}
		if !bytes.Equal(first, group.Authenticator()) {
			w.Report(Violation{Kind: Broken, Convo: c.id, Who: p.Name, What: "another epoch authenticator than " + members[0].Name})
		}
	}
}

// view fetches all that a member can see, in two ways: the whole log by seq in
// large pages, and the default pages by cursor in small ones.
func (w *World) view(ctx context.Context, p *Phone, c *convoModel) (*view, error) {
	thread, _, err := p.open(c.id)
	if err != nil {
		return nil, err
	}
	v := &view{who: p.Name, did: p.Account.DID, entered: thread.Entered}
	if v.inbox, err = p.Inbox(c.id); err != nil {
		return nil, err
	}
	if v.log, v.lastSeq, err = w.pages(ctx, p, func(last *mlsapi.MessageView) Call {
		if last == nil {
			return messagesCall(c.id, "all", 0, 100)
		}
		return messagesCall(c.id, "all", last.Seq, 100)
	}); err != nil {
		return nil, err
	}
	if v.apps, _, err = w.pages(ctx, p, func(last *mlsapi.MessageView) Call {
		if last == nil {
			return messagesSinceCall(c.id, "", "", 9)
		}
		return messagesSinceCall(c.id, "", last.ID, 9)
	}); err != nil {
		return nil, err
	}
	if err := w.epochView(ctx, p, c, v); err != nil {
		return nil, err
	}
	return v, nil
}

func (w *World) epochView(ctx context.Context, p *Phone, c *convoModel, v *view) error {
	answer, err := w.net.Do(ctx, p.Account, epochCall(c.id))
	if err != nil {
		return err
	}
	epoch, err := mlsapi.DecodeGetEpochOutput(answer.Body)
	if err != nil {
		return err
	}
	v.epoch = epoch.CurrentEpoch
	if !slices.ContainsFunc(v.log, func(m mlsapi.MessageView) bool { return isCommit(&m) }) {
		return nil // fromEpoch would lie beyond the current one
	}
	first := slices.IndexFunc(v.log, func(m mlsapi.MessageView) bool { return isCommit(&m) })
	from, err := headerEpoch(v.log[first].Ciphertext)
	if err != nil {
		return err
	}
	if answer, err = w.net.Do(ctx, p.Account, commitsCall(c.id, from+1)); err != nil {
		return err
	}
	commits, err := mlsapi.DecodeGetCommitsOutput(answer.Body)
	if err != nil {
		return err
	}
	v.commits = commits.Commits
	slices.SortStableFunc(v.commits, func(a, b mlsapi.CommitView) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return nil
}

// pages reads a list to its end; next makes the call behind the last entry.
func (w *World) pages(ctx context.Context, p *Phone, next func(*mlsapi.MessageView) Call) ([]mlsapi.MessageView, int64, error) {
	var all []mlsapi.MessageView
	var last *mlsapi.MessageView
	for {
		answer, err := w.net.Do(ctx, p.Account, next(last))
		if err != nil {
			return nil, 0, err
		}
		page, err := mlsapi.DecodeGetMessagesOutput(answer.Body)
		if err != nil {
			return nil, 0, err
		}
		if page.LastSeq == nil {
			return nil, 0, fmt.Errorf("getMessages without lastSeq: %.200q", answer.Body)
		}
		all = append(all, page.Messages...)
		if page.Cursor == nil {
			return all, *page.LastSeq, nil
		}
		if len(page.Messages) == 0 {
			return nil, 0, fmt.Errorf("an empty page with a cursor: %.200q", answer.Body)
		}
		last = &all[len(all)-1]
		if *page.Cursor != last.ID {
			w.Broken("getMessages' cursor is %q, and its last id %q", *page.Cursor, last.ID)
		}
	}
}
