package history

import (
	"bytes"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// View is what one member can see of a convo over HTTP, and what its phone decrypted.
type View struct {
	Who     string
	DID     syntax.DID
	Log     []mlsapi.MessageView // messageType=all, by seq
	Apps    []mlsapi.MessageView // the default messageType, by cursor
	Commits []mlsapi.CommitView
	LastSeq int64
	Epoch   int64
	Inbox   []Item
	Entered uint64 // the epoch in which the phone joined the group
}

// CheckView compares one member's view with the model. It is a pure function.
func CheckView(c *ConvoModel, v *View) []Violation {
	k := &checker{convo: c, view: v}
	from := int64(1)
	if member, ok := c.Members[v.DID]; ok {
		from = member.from
	} else {
		k.report(Broken, "%s reads the log and is no member", v.DID)
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
	convo *ConvoModel
	view  *View
	found []Violation
}

func (k *checker) report(kind ViolationKind, format string, args ...any) {
	k.found = append(k.found,
		Violation{Kind: kind, Convo: k.convo.ID, Who: k.view.Who, What: fmt.Sprintf(format, args...)})
}

// dense checks that seq runs from the first visible entry to the end without a gap or a repeat, and
// that no id occurs twice.
func (k *checker) dense(from int64) {
	ids := map[string]int64{}
	want := from
	for i := range k.view.Log {
		entry := &k.view.Log[i]
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
		if entry.ConvoID != k.convo.ID {
			k.report(Broken, "seq %d says it is in convo %s", entry.Seq, entry.ConvoID)
		}
	}
	if want-1 != k.view.LastSeq {
		k.report(Lost, "the log ends at seq %d, and lastSeq is %d", want-1, k.view.LastSeq)
	}
}

// messages checks that the log has every acknowledged message exactly once, with its bytes, id,
// seq, sender and epoch, and that a phone has sent every message of the log.
func (k *checker) messages(from int64) {
	seen := map[Digest]int64{}
	for i := range k.view.Log {
		entry := &k.view.Log[i]
		if xrpc.IsCommit(entry) {
			continue
		}
		d := DigestOf(entry.Ciphertext)
		if before, ok := seen[d]; ok {
			k.report(Duplicated, "the ciphertext of seq %d stands at %d as well", before, entry.Seq)
		}
		seen[d] = entry.Seq
		text, sentIt := k.convo.Attempted[d]
		if !sentIt {
			k.report(Broken, "seq %d holds bytes that no phone has sent", entry.Seq)
		}
		if _, ok := k.convo.Refused[d]; ok {
			k.report(Broken, "seq %d (%q) was refused and stands in the log", entry.Seq, text)
		}
		k.acknowledged(entry, d, text)
	}
	for text, s := range k.convo.Sent {
		if _, ok := seen[s.Digest]; !ok && s.Seq >= from {
			k.report(Lost, "message %q, acknowledged at seq %d, is not in the log", text, s.Seq)
		}
	}
}

func (k *checker) acknowledged(entry *mlsapi.MessageView, d Digest, text string) {
	s, ok := k.convo.Sent[text]
	if !ok {
		return // its acknowledgement may still come
	}
	if s.Digest != d {
		k.report(Duplicated, "%q stands at seq %d and, encrypted anew, at %d", text, s.Seq, entry.Seq)
		return
	}
	if s.ID != entry.ID || s.Seq != entry.Seq || s.Sender != entry.Sender || int64(s.Epoch) != entry.Epoch {
		k.report(Broken, "%q was acknowledged as %s at seq %d by %s in epoch %d, and stands as %s at seq %d by %s in "+
			"epoch %d",
			text, s.ID, s.Seq, s.Sender, s.Epoch, entry.ID, entry.Seq, entry.Sender, entry.Epoch)
	}
}

// handshakes checks that every acknowledged commit is at its seq with its sender. A phone must have
// made every commit of the log, and the server must not have refused it.
func (k *checker) handshakes(from int64) {
	seen := map[Digest]bool{}
	for i := range k.view.Log {
		entry := &k.view.Log[i]
		if !xrpc.IsCommit(entry) {
			continue
		}
		d := DigestOf(entry.Ciphertext)
		seen[d] = true
		made, ok := k.convo.Commits[d]
		if !ok {
			k.report(Broken, "seq %d holds a commit that no phone has made", entry.Seq)
			continue
		}
		if _, ok := k.convo.Refused[d]; ok {
			k.report(Broken, "the commit at seq %d was refused and stands in the log", entry.Seq)
		}
		if made.Sender != entry.Sender || made.Epoch != uint64(entry.Epoch)+1 || made.Seq != 0 && made.Seq != entry.Seq {
			k.report(Broken, "the commit of %s that creates epoch %d, acknowledged at seq %d, stands at %d as one of %s in "+
				"epoch %d",
				made.Sender, made.Epoch, made.Seq, entry.Seq, entry.Sender, entry.Epoch)
		}
	}
	for d, made := range k.convo.Commits {
		if made.Seq >= max(from, 1) && !seen[d] {
			k.report(Lost, "the commit that creates epoch %d, acknowledged at seq %d, is not in the log", made.Epoch, made.Seq)
		}
	}
}

// epochs reads the entries' own MLS headers. Commits follow each other without a gap, one per
// epoch, and each message is in the epoch that it was made in. getCommits and getEpoch must agree.
func (k *checker) epochs(from int64) {
	epoch := k.convo.firstEpoch
	var commits []*mlsapi.MessageView
	for i := range k.view.Log {
		entry := &k.view.Log[i]
		header, err := mlsclient.HeaderEpoch(entry.Ciphertext)
		if err != nil {
			k.report(Broken, "seq %d: %v", entry.Seq, err)
			continue
		}
		if i == 0 && from > 1 {
			epoch = header // this member sees nothing older
			if !xrpc.IsCommit(entry) {
				k.report(Broken, "seq %d, the first that a later member sees, is not the commit that added it", entry.Seq)
			}
		}
		if header != epoch {
			k.report(Broken, "seq %d was made in epoch %d and stands in epoch %d", entry.Seq, header, epoch)
		}
		if uint64(entry.Epoch) != header {
			k.report(Broken, "seq %d says epoch %d and its header %d", entry.Seq, entry.Epoch, header)
		}
		if xrpc.IsCommit(entry) {
			commits = append(commits, entry)
			epoch = header + 1
		}
	}
	if uint64(k.view.Epoch) != epoch {
		k.report(Broken, "getEpoch says %d, and the log ends in epoch %d", k.view.Epoch, epoch)
	}
	k.sameCommits(commits)
}

func (k *checker) sameCommits(commits []*mlsapi.MessageView) {
	if len(commits) != len(k.view.Commits) {
		k.report(Broken, "getCommits has %d commits and the log %d", len(k.view.Commits), len(commits))
		return
	}
	for i, entry := range commits {
		other := &k.view.Commits[i]
		header, err := mlsclient.HeaderEpoch(other.CommitData)
		if err != nil {
			k.report(Broken, "getCommits, epoch %d: %v", other.Epoch, err)
			continue
		}
		if uint64(other.Epoch) != header+1 || !bytes.Equal(other.CommitData, entry.Ciphertext) ||
			other.Sender != entry.Sender {
			k.report(Broken, "getCommits and seq %d differ on the commit that creates epoch %d", entry.Seq, other.Epoch)
		}
	}
}

// applications checks that the default page is the log without its commits.
func (k *checker) applications() {
	var want []string
	for i := range k.view.Log {
		if !xrpc.IsCommit(&k.view.Log[i]) {
			want = append(want, k.view.Log[i].ID)
		}
	}
	for i := range k.view.Apps {
		if i >= len(want) || k.view.Apps[i].ID != want[i] {
			k.report(Broken, "getMessages without a messageType shows %s at place %d", k.view.Apps[i].ID, i)
			return
		}
	}
	if len(k.view.Apps) < len(want) {
		k.report(Lost, "getMessages without a messageType shows %d messages of %d", len(k.view.Apps), len(want))
	}
}

// inboxed checks that the phone decrypted every acknowledged message once, with the text and the
// sender that it was sent with. CheckRestored checks the messages of epochs that the phone had left
// when the server was restored.
func (k *checker) inboxed(from int64) {
	seen, past := map[string]int64{}, map[Digest]bool{}
	for _, item := range k.view.Inbox {
		past[item.Digest] = item.Past
		if item.Commit || item.Past {
			continue
		}
		if before, ok := seen[item.Text]; ok {
			k.report(Duplicated, "%q was read at seq %d and at %d", item.Text, before, item.Seq)
		}
		seen[item.Text] = item.Seq
		s, ok := k.convo.Sent[item.Text]
		if ok && (s.Seq != item.Seq || s.Sender != item.Sender) {
			k.report(Broken, "%q of %s at seq %d was read as of %s at %d", item.Text, s.Sender, s.Seq, item.Sender, item.Seq)
		}
	}
	for text, s := range k.convo.Sent {
		if _, ok := seen[text]; !ok && s.Seq >= from && s.Epoch >= k.view.Entered && !past[s.Digest] {
			k.report(Lost, "%q, acknowledged at seq %d, was never read", text, s.Seq)
		}
	}
}

// Item is one entry of a convo's log as a phone has read it.
type Item struct {
	Seq    int64      `json:"seq"`
	ID     string     `json:"id"`
	Commit bool       `json:"commit,omitempty"`
	Own    bool       `json:"own,omitempty"`
	Past   bool       `json:"past,omitempty"` // of an epoch that this device has no key for
	Digest Digest     `json:"digest,omitzero"`
	Sender syntax.DID `json:"sender"` // as the MLS message says; for the phone's own message, its account
	Text   string     `json:"text,omitempty"`
	Data   []byte     `json:"data,omitempty"` // the plaintext, if Text cannot hold it because it is not UTF-8
}

// Followed returns how far a server that sees only the handshakes could check the last commit, and
// whether it has the GroupInfo of the present epoch. known is false if the view does not begin at
// seq 1, or if the model does not know one of its commits.
func (c *ConvoModel) Followed(v *View) (level string, info, known bool) {
	tree := c.withInfo
	level, info = mlsapi.ConvoViewCommitLevelHeader, c.withInfo
	if tree {
		level = mlsapi.ConvoViewCommitLevelVerified
	}
	if m := c.Members[v.DID]; m == nil || m.from > 1 {
		return "", false, false
	}
	for i := range v.Log {
		entry := &v.Log[i]
		if !xrpc.IsCommit(entry) {
			continue
		}
		made, ok := c.Commits[DigestOf(entry.Ciphertext)]
		switch {
		case !ok:
			return "", false, false
		case !made.Public:
			level, tree = mlsapi.ConvoViewCommitLevelHeader, made.WithInfo
		case tree:
			level = mlsapi.ConvoViewCommitLevelVerified
		default:
			level, tree = mlsapi.ConvoViewCommitLevelStructure, made.WithInfo
		}
		info = made.WithInfo
	}
	return level, info, true
}
