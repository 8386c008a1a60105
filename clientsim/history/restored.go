package history

import (
	"fmt"
	"maps"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Gone has the acknowledged writes of a convo that the server lost in a restore. A write that
// clients make good is removed from Gone.
type Gone struct {
	Sent    map[string]Sent     // messages, by text
	Commits map[Digest]Commit   // commits; others may have taken their epochs
	Joined  map[syntax.DID]bool // members that a lost commit added
	Left    map[syntax.DID]bool // members that have left, or were removed
}

func (g Gone) clone() Gone {
	return Gone{Sent: maps.Clone(g.Sent), Commits: maps.Clone(g.Commits), Joined: maps.Clone(g.Joined),
		Left: maps.Clone(g.Left)}
}

// Count returns how many acknowledged writes are gone.
func (g Gone) Count() int { return len(g.Sent) + len(g.Commits) + len(g.Left) }

// Restored records that the server was restored, and what the server then has of a convo: the whole
// log, and the roster. An acknowledged write that is missing is gone until it is acknowledged
// again, perhaps at another place. Every acknowledged call may get a new answer.
func (m *Model) Restored(convo string, log []mlsapi.MessageView, roster []syntax.DID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acknowledged, m.claims = nil, map[Digest]string{}
	c := m.convos[convo]
	there := map[Digest]bool{}
	for i := range log {
		there[DigestOf(log[i].Ciphertext)] = true
	}
	c.Gone = Gone{Sent: map[string]Sent{}, Commits: map[Digest]Commit{}, Joined: map[syntax.DID]bool{},
		Left: map[syntax.DID]bool{}}
	for text, s := range c.Sent {
		if !there[s.Digest] {
			c.Gone.Sent[text] = s
			delete(c.Sent, text)
		}
	}
	for d, made := range c.Commits {
		if made.Seq != 0 && !there[d] {
			c.Gone.Commits[d] = made
			made.Seq = 0
			c.Commits[d] = made
		}
	}
	for did, member := range c.Members {
		on := slices.Contains(roster, did)
		if member.Live && !on {
			c.Gone.Joined[did] = true
		}
		if !member.Live && on {
			c.Gone.Left[did] = true
		}
		member.Live = on
	}
}

// Unread returns the acknowledged messages which a member may see and which a device has never
// read.
func (c *ConvoModel) Unread(did syntax.DID, items []Item) (texts []string) {
	read := map[string]bool{}
	for _, item := range items {
		read[item.Text] = true
	}
	for _, text := range slices.Sorted(maps.Keys(c.Sent)) {
		if !read[text] && c.Sent[text].Seq >= c.Members[did].from {
			texts = append(texts, text)
		}
	}
	return texts
}

// CheckRestored reports the writes that are still gone. The writes of members that never came back
// are no violations: named lists them. A commit need not come back, because another commit may have
// its epoch.
func (c *ConvoModel) CheckRestored(never func(syntax.DID) bool) (found []Violation, named []string) {
	judge := func(who syntax.DID, what string) {
		if never(who) {
			named = append(named, what+": its device never came back")
			return
		}
		found = append(found, Violation{Kind: Lost, Convo: c.ID,
			What: what + " was lost in the restore, and nobody made it good"})
	}
	for _, text := range slices.Sorted(maps.Keys(c.Gone.Sent)) {
		judge(c.Gone.Sent[text].Sender, fmt.Sprintf("%q of %s", text, c.Gone.Sent[text].Sender))
	}
	for _, did := range slices.Sorted(maps.Keys(c.Gone.Joined)) {
		judge(did, fmt.Sprintf("the addition of %s", did))
	}
	for _, did := range slices.Sorted(maps.Keys(c.Gone.Left)) {
		judge(did, fmt.Sprintf("the leave of %s", did))
	}
	return found, named
}
