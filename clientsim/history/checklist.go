package history

import (
	"fmt"
	"maps"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// ListEntry is what getConvos must say about one convo.
type ListEntry struct {
	GroupID string
	Members []syntax.DID
	// View is what the account's phone sees of the convo. nil means that no phone of the account has
	// joined. Then the remaining fields are unknown.
	View   *View
	Cursor int64
}

// CheckList checks that every convo of the account is in its list exactly once, with correct
// fields, and that the list has no other convo.
func CheckList(who string, did syntax.DID, got []mlsapi.ConvoView, want map[string]ListEntry) (found []Violation) {
	report := func(kind ViolationKind, convo, format string, args ...any) {
		found = append(found, Violation{Kind: kind, Convo: convo, Who: who,
			What: "getConvos " + fmt.Sprintf(format, args...)})
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
		if !slices.Equal(members, l.Members) {
			report(Broken, entry.ID, "says that its members are %v, want %v", members, l.Members)
		}
		if entry.GroupID != l.GroupID {
			report(Broken, entry.ID, "says that it is group %s, want %s", entry.GroupID, l.GroupID)
		}
		if l.View == nil {
			continue
		}
		if entry.Epoch != l.View.Epoch {
			report(Broken, entry.ID, "says epoch %d, want %d", entry.Epoch, l.View.Epoch)
		}
		if entry.LastSeq == nil || *entry.LastSeq != l.View.LastSeq {
			report(Broken, entry.ID, "does not say lastSeq %d", l.View.LastSeq)
		}
		if unread := l.View.unread(l.Cursor); entry.Unread == nil || *entry.Unread != unread {
			report(Broken, entry.ID, "does not say %d unread behind seq %d: %s", unread, l.Cursor, xrpc.Show(entry.Unread))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if !seen[id] {
			report(Lost, id, "does not list it to %s", did)
		}
	}
	return found
}

// maxUnread is the largest count of unread messages that the server gives.
const maxUnread = 100

// unread counts the application messages of others after a cursor.
func (v *View) unread(cursor int64) (n int64) {
	for i := range v.Log {
		if entry := &v.Log[i]; entry.Seq > cursor && !xrpc.IsHandshake(entry) && entry.Sender != v.DID {
			n++
		}
	}
	return min(n, maxUnread)
}
