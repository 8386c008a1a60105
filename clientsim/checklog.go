package clientsim

import (
	"bytes"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// view is all that one member can see of a convo, fetched over HTTP, and what
// its phone has made of it.
type view struct {
	who     string
	did     syntax.DID
	log     []mlsapi.MessageView // type=all, by seq
	apps    []mlsapi.MessageView // the default type, by cursor
	commits []mlsapi.CommitView
	lastSeq int64
	epoch   int64
	inbox   []Item
	entered uint64 // the epoch in which the phone came into the group
}

// checkView holds one member's view against the model. It is a pure function:
// checklog_test.go shows that it sees what it is there to see.
func checkView(c *convoModel, v *view) []Violation {
	k := &checker{convo: c, view: v}
	from := int64(1)
	if member, ok := c.members[v.did]; ok {
		from = member.from
	} else {
		k.report(Broken, "%s reads the log and is no member", v.did)
	}
	k.dense(from)
	k.messages(from)
	k.handshakes(from)
	k.epochs(from)
	k.applications()
	k.inboxed(from)
	return k.found
}

type checker struct {
	convo *convoModel
	view  *view
	found []Violation
}

func (k *checker) report(kind ViolationKind, format string, args ...any) {
	k.found = append(k.found, Violation{Kind: kind, Convo: k.convo.id, Who: k.view.who, What: fmt.Sprintf(format, args...)})
}

// dense: seq runs from the first visible entry to the end without gap or
// repeat, and no id stands twice.
func (k *checker) dense(from int64) {
	ids := map[string]int64{}
	want := from
	for i := range k.view.log {
		entry := &k.view.log[i]
		switch {
		case entry.Seq < want:
			k.report(Duplicated, "seq %d again, or below the first visible %d", entry.Seq, from)
		case entry.Seq > want:
			k.report(Lost, "seq %d follows %d", entry.Seq, want-1)
		}
		want = entry.Seq + 1
		if before, ok := ids[entry.ID]; ok {
			k.report(Duplicated, "id %s at seq %d and at %d", entry.ID, before, entry.Seq)
		}
		ids[entry.ID] = entry.Seq
		if entry.ConvoID != k.convo.id {
			k.report(Broken, "seq %d says it is in convo %s", entry.Seq, entry.ConvoID)
		}
	}
	if want-1 != k.view.lastSeq {
		k.report(Lost, "the log ends at seq %d, and lastSeq is %d", want-1, k.view.lastSeq)
	}
}

// messages: every acknowledged message stands exactly once, with its own
// bytes, id, seq, sender and epoch, and nothing stands that nobody sent.
func (k *checker) messages(from int64) {
	seen := map[digest]int64{}
	for i := range k.view.log {
		entry := &k.view.log[i]
		if isCommit(entry) {
			continue
		}
		d := digestOf(entry.Ciphertext)
		if before, ok := seen[d]; ok {
			k.report(Duplicated, "the ciphertext of seq %d stands at %d as well", before, entry.Seq)
		}
		seen[d] = entry.Seq
		text, sentIt := k.convo.attempted[d]
		if !sentIt {
			k.report(Broken, "seq %d holds bytes that no phone has sent", entry.Seq)
		}
		if _, ok := k.convo.refused[d]; ok {
			k.report(Broken, "seq %d (%q) was refused and stands in the log", entry.Seq, text)
		}
		k.acknowledged(entry, d, text)
	}
	for text, s := range k.convo.sent {
		if _, ok := seen[s.digest]; !ok && s.seq >= from {
			k.report(Lost, "message %q, acknowledged at seq %d, is not in the log", text, s.seq)
		}
	}
}

func (k *checker) acknowledged(entry *mlsapi.MessageView, d digest, text string) {
	s, ok := k.convo.sent[text]
	if !ok {
		return // its acknowledgement is still on the way
	}
	if s.digest != d {
		k.report(Duplicated, "%q stands at seq %d and, encrypted anew, at %d", text, s.seq, entry.Seq)
		return
	}
	if s.id != entry.ID || s.seq != entry.Seq || s.sender != entry.Sender || int64(s.epoch) != entry.Epoch {
		k.report(Broken, "%q was acknowledged as %s at seq %d by %s in epoch %d, and stands as %s at seq %d by %s in epoch %d",
			text, s.id, s.seq, s.sender, s.epoch, entry.ID, entry.Seq, entry.Sender, entry.Epoch)
	}
}

// handshakes: every acknowledged commit stands where it was acknowledged, by
// whom it was, and none stands that nobody made or that was turned down.
func (k *checker) handshakes(from int64) {
	seen := map[digest]bool{}
	for i := range k.view.log {
		entry := &k.view.log[i]
		if !isCommit(entry) {
			continue
		}
		d := digestOf(entry.Ciphertext)
		seen[d] = true
		made, ok := k.convo.commits[d]
		if !ok {
			k.report(Broken, "seq %d holds a commit that no phone has made", entry.Seq)
			continue
		}
		if _, ok := k.convo.refused[d]; ok {
			k.report(Broken, "the commit at seq %d was refused and stands in the log", entry.Seq)
		}
		if made.sender != entry.Sender || made.epoch != uint64(entry.Epoch)+1 || made.seq != 0 && made.seq != entry.Seq {
			k.report(Broken, "the commit of %s that creates epoch %d, acknowledged at seq %d, stands at %d as one of %s in epoch %d",
				made.sender, made.epoch, made.seq, entry.Seq, entry.Sender, entry.Epoch)
		}
	}
	for d, made := range k.convo.commits {
		if made.seq >= max(from, 1) && !seen[d] {
			k.report(Lost, "the commit that creates epoch %d, acknowledged at seq %d, is not in the log", made.epoch, made.seq)
		}
	}
}

// epochs: read from the entries' own MLS headers, commits follow each other
// without gap, one per epoch, and a message stands in the epoch it was made
// in. getCommits and getEpoch say the same.
func (k *checker) epochs(from int64) {
	epoch := k.convo.firstEpoch
	var commits []*mlsapi.MessageView
	for i := range k.view.log {
		entry := &k.view.log[i]
		header, err := headerEpoch(entry.Ciphertext)
		if err != nil {
			k.report(Broken, "seq %d: %v", entry.Seq, err)
			continue
		}
		if i == 0 && from > 1 {
			epoch = header // where this member's knowledge begins
			if !isCommit(entry) {
				k.report(Broken, "seq %d, the first that a later member sees, is not the commit that added it", entry.Seq)
			}
		}
		if header != epoch {
			k.report(Broken, "seq %d was made in epoch %d and stands in epoch %d", entry.Seq, header, epoch)
		}
		if uint64(entry.Epoch) != header {
			k.report(Broken, "seq %d says epoch %d and its header %d", entry.Seq, entry.Epoch, header)
		}
		if isCommit(entry) {
			commits = append(commits, entry)
			epoch = header + 1
		}
	}
	if uint64(k.view.epoch) != epoch {
		k.report(Broken, "getEpoch says %d, and the log ends in epoch %d", k.view.epoch, epoch)
	}
	k.sameCommits(commits)
}

func (k *checker) sameCommits(commits []*mlsapi.MessageView) {
	if len(commits) != len(k.view.commits) {
		k.report(Broken, "getCommits has %d commits and the log %d", len(k.view.commits), len(commits))
		return
	}
	for i, entry := range commits {
		other := &k.view.commits[i]
		header, err := headerEpoch(other.CommitData)
		if err != nil {
			k.report(Broken, "getCommits, epoch %d: %v", other.Epoch, err)
			continue
		}
		if uint64(other.Epoch) != header+1 || !bytes.Equal(other.CommitData, entry.Ciphertext) || other.Sender != entry.Sender {
			k.report(Broken, "getCommits and seq %d differ on the commit that creates epoch %d", entry.Seq, other.Epoch)
		}
	}
}

// applications: the default page is the log without its commits.
func (k *checker) applications() {
	var want []string
	for i := range k.view.log {
		if !isCommit(&k.view.log[i]) {
			want = append(want, k.view.log[i].ID)
		}
	}
	for i := range k.view.apps {
		if i >= len(want) || k.view.apps[i].ID != want[i] {
			k.report(Broken, "getMessages without a type shows %s at place %d", k.view.apps[i].ID, i)
			return
		}
	}
	if len(k.view.apps) < len(want) {
		k.report(Lost, "getMessages without a type shows %d messages of %d", len(k.view.apps), len(want))
	}
}

// inboxed: the phone has decrypted every acknowledged message once, with the
// text and the sender that it was sent with.
func (k *checker) inboxed(from int64) {
	seen := map[string]int64{}
	for _, item := range k.view.inbox {
		if item.Commit || item.Past {
			continue
		}
		if before, ok := seen[item.Text]; ok {
			k.report(Duplicated, "%q was read at seq %d and at %d", item.Text, before, item.Seq)
		}
		seen[item.Text] = item.Seq
		s, ok := k.convo.sent[item.Text]
		if ok && (s.seq != item.Seq || s.sender != item.Sender) {
			k.report(Broken, "%q of %s at seq %d was read as of %s at %d", item.Text, s.sender, s.seq, item.Sender, item.Seq)
		}
	}
	for text, s := range k.convo.sent {
		if _, ok := seen[text]; !ok && s.seq >= from && s.epoch >= k.view.entered {
			k.report(Lost, "%q, acknowledged at seq %d, was never read", text, s.seq)
		}
	}
}

func isCommit(entry *mlsapi.MessageView) bool {
	return entry.MessageType != nil && *entry.MessageType == "commit"
}
