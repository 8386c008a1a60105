package clientsim

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// listPage is small, so that a member of a few convos reads several pages.
const listPage = 2

// mostUnread is where the server stops counting.
const mostUnread = 100

// listed is what one entry of getConvos has to say.
type listed struct {
	groupID string
	members []syntax.DID
	// view is what the account's phone sees of the convo; nil while no phone of
	// it has joined, and then the rest is not known.
	view   *view
	cursor int64
}

// checkLists reads each account's convos in small pages and holds them against
// the model. On the way it asks for an older place in each convo, which must
// not move the account back.
func (w *World) checkLists(ctx context.Context, views map[string]map[syntax.DID]*view) {
	convos := w.model.snapshot()
	for _, p := range w.accounts() {
		did := p.Account.DID
		want := map[string]listed{}
		for _, c := range convos {
			m, was := c.members[did]
			if !was || !m.live {
				continue
			}
			if err := p.MarkRead(ctx, c.id, 0); err != nil {
				w.Broken("%v", err)
			}
			want[c.id] = listed{groupID: hex.EncodeToString(c.groupID), members: c.live(), view: views[c.id][did], cursor: m.cursor}
		}
		got, err := w.list(ctx, p)
		if err != nil {
			w.Broken("%s cannot list its convos: %v", p.Name, err)
			continue
		}
		w.Report(checkList(p.Name, did, got, want)...)
	}
}

// accounts returns one phone of each account.
func (w *World) accounts() []*Phone {
	seen := map[syntax.DID]bool{}
	return slices.DeleteFunc(slices.Clone(w.phones), func(p *Phone) bool {
		again := seen[p.Account.DID]
		seen[p.Account.DID] = true
		return again
	})
}

// list reads getConvos to its end.
func (w *World) list(ctx context.Context, p *Phone) ([]mlsapi.ConvoView, error) {
	var all []mlsapi.ConvoView
	cursor := ""
	for {
		answer, err := w.net.Do(ctx, p.Account, convosCall(cursor, listPage))
		if err != nil {
			return nil, err
		}
		page, err := mlsapi.DecodeGetConvosOutput(answer.Body)
		if err != nil {
			return nil, err
		}
		if all = append(all, page.Conversations...); page.Cursor == nil {
			return all, nil
		}
		if len(page.Conversations) == 0 || *page.Cursor == cursor {
			return nil, fmt.Errorf("getConvos does not get on: %.200q", answer.Body)
		}
		cursor = *page.Cursor
	}
}

// checkList: every convo of the account stands in its list exactly once, as it
// is, and no other does.
func checkList(who string, did syntax.DID, got []mlsapi.ConvoView, want map[string]listed) (found []Violation) {
	report := func(kind ViolationKind, convo, format string, args ...any) {
		found = append(found, Violation{Kind: kind, Convo: convo, Who: who, What: "getConvos " + fmt.Sprintf(format, args...)})
	}
	seen := map[string]bool{}
	for i := range got {
		entry := &got[i]
		l, ok := want[entry.ID]
		switch {
		case seen[entry.ID]:
			report(Duplicated, entry.ID, "lists it twice")
			continue
		case !ok:
			report(Broken, entry.ID, "lists it to one who is no member")
			continue
		}
		seen[entry.ID] = true
		members := make([]syntax.DID, len(entry.Members))
		for i := range entry.Members {
			members[i] = entry.Members[i].DID
		}
		slices.Sort(members)
		if !slices.Equal(members, l.members) {
			report(Broken, entry.ID, "says that its members are %v, want %v", members, l.members)
		}
		if entry.GroupID != l.groupID {
			report(Broken, entry.ID, "says that it is group %s, want %s", entry.GroupID, l.groupID)
		}
		if l.view == nil {
			continue
		}
		if entry.Epoch != l.view.epoch {
			report(Broken, entry.ID, "says epoch %d, want %d", entry.Epoch, l.view.epoch)
		}
		if entry.LastSeq == nil || *entry.LastSeq != l.view.lastSeq {
			report(Broken, entry.ID, "does not say lastSeq %d", l.view.lastSeq)
		}
		if unread := l.view.unread(l.cursor); entry.Unread == nil || *entry.Unread != unread {
			report(Broken, entry.ID, "does not say %d unread behind seq %d: %s", unread, l.cursor, show(entry.Unread))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if !seen[id] {
			report(Lost, id, "does not list it to %s", did)
		}
	}
	return found
}

// show puts an optional field into words that no other value has.
func show[T any](field *T) string {
	if field == nil {
		return "nothing"
	}
	return fmt.Sprintf("%#v", *field)
}

// unread counts the messages of others behind a cursor.
func (v *view) unread(cursor int64) (n int64) {
	for i := range v.log {
		if entry := &v.log[i]; entry.Seq > cursor && !isCommit(entry) && entry.Sender != v.did {
			n++
		}
	}
	return min(n, mostUnread)
}
