package api_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// calls are all methods that name a convo, as u would call them.
func (u *user) calls(c *convo) map[string]answer {
	u.w.t.Helper()
	_, ref := u.KeyPackage(u.w.t)
	commit := func(what string) []byte { return mlstest.Commit(c.group, c.epoch, what+u.did().String()) }
	someone := u.w.user().did()
	f := &file{by: u, convo: c, id: uuid.NewString(), body: []byte("x")}
	return map[string]answer{
		"getConvo":                u.get(mlsapi.NSIDGetConvo, "convoId", c.id),
		"getEpoch":                u.get(mlsapi.NSIDGetEpoch, "convoId", c.id),
		"getMessages":             u.get(mlsapi.NSIDGetMessages, "convoId", c.id, "messageType", "all"),
		"getMessages, cursor":     u.get(mlsapi.NSIDGetMessages, "convoId", c.id, "sinceMessage", uuid.NewString()),
		"getCommits":              u.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "0"),
		"getCommits, far":         u.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "1000"),
		"getWelcome":              u.fetch(c),
		"getWelcome, device":      u.fetch(c, "deviceId", "x"),
		"confirmWelcome":          u.confirm(c, true, nil),
		"confirmWelcome, failed":  u.confirm(c, false, nil),
		"getCursors":              u.get(mlsapi.NSIDGetCursors, "convoId", c.id),
		"sendSignal":              u.post(mlsapi.NSIDSendSignal, u.signal(c, "x")),
		"sendSignal, other epoch": u.post(mlsapi.NSIDSendSignal, u.signal(&convo{c.id, c.group, c.epoch + 7}, "x")),
		"updateCursor":            u.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 1000}),
		"sendMessage":             u.post(mlsapi.NSIDSendMessage, u.message(c, "x")),
		"createAttachment":        u.post(mlsapi.NSIDCreateAttachment, announcement(c, f.body)),
		"putAttachmentPart":       f.put(1),
		"completeAttachment":      f.complete(u),
		"getAttachment":           f.get(u),
		"getAttachmentStatus":     u.get(mlsapi.NSIDGetAttachmentStatus, "convoId", c.id, "attachmentId", f.id),
		"deleteAttachment":        f.remove(u, nil),
		"getLogHead":              u.get(mlsapi.NSIDGetLogHead, "convoId", c.id, "senders", u.did().String()),
		"getLogProof":             u.get(mlsapi.NSIDGetLogProof, "convoId", c.id, "seq", "1", "size", "1"),
		"getLogProof, far":        u.get(mlsapi.NSIDGetLogProof, "convoId", c.id, "from", "1", "size", "1000"),
		"reportEpoch":             u.post(mlsapi.NSIDReportEpoch, entry(c, c.epoch, "x")),
		"reportEpoch, ahead":      u.post(mlsapi.NSIDReportEpoch, entry(c, c.epoch+7, "x")),
		"reportCommit":            u.post(mlsapi.NSIDReportCommit, failure(c, c.epoch)),
		"reportCommit, ahead":     u.post(mlsapi.NSIDReportCommit, failure(c, c.epoch+7)),

		"sendMessage, other group": u.post(mlsapi.NSIDSendMessage, func() *mlsapi.SendMessageInput {
			in := u.message(c, "x")
			in.Ciphertext = mlstest.Message(newGroup(u.w.t), c.epoch, "x")
			return in
		}()),
		"sendMessage, other epoch": u.post(mlsapi.NSIDSendMessage, u.message(&convo{c.id, c.group, c.epoch + 7}, "x")),
		"addMembers": u.post(mlsapi.NSIDAddMembers, &mlsapi.AddMembersInput{ConvoID: c.id, DIDList: []syntax.DID{someone},
			Commit: commit("add"), WelcomeMessage: mlstest.Welcome(u.w.t, ref), IdempotencyKey: newKey()}),
		"addMembers, no commit": u.post(mlsapi.NSIDAddMembers,
			&mlsapi.AddMembersInput{ConvoID: c.id, DIDList: []syntax.DID{someone}}),
		"leaveConvo, other": u.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: &someone,
			Commit: commit("remove")}),
		"leaveConvo": u.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: newKey()}),
	}
}

// An outsider gets the same bytes for a convo that exists as for one that does not, from every
// method. A text that is no id is refused as such: it says nothing of convos.
func TestOutsidersLearnNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, outsider := w.user(), w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "hello")
	alice.add(c, w.user())
	never := &convo{uuid.Must(uuid.NewV7()).String(), newGroup(t), c.epoch}
	noID := &convo{"not-an-id", newGroup(t), c.epoch}
	before := w.count(`SELECT count(*) FROM messages`)
	real, other, odd := outsider.calls(c), outsider.calls(never), outsider.calls(noID)
	for name, a := range real {
		a.fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
		if b := other[name]; a.status != b.status || !bytes.Equal(a.body, b.body) {
			t.Errorf("%s: a convo that exists answers %d %s, one that does not %d %s", name, a.status, a.body, b.status, b.body)
		}
		said := odd[name].fails(http.StatusBadRequest, "InvalidRequest")
		if !strings.HasPrefix(said, "convoId must be a UUID in lower case") || strings.Contains(said, noID.id) {
			t.Errorf("%s: what is no id is refused with %s", name, said)
		}
	}
	// An id in another spelling is none, for a member too.
	for _, id := range []string{strings.ToUpper(c.id), "{" + c.id + "}", "urn:uuid:" + c.id,
		strings.ReplaceAll(c.id, "-", ""), c.id + " "} {
		bob.get(mlsapi.NSIDGetEpoch, "convoId", id).fails(http.StatusBadRequest, "InvalidRequest")
	}
	if n := w.count(`SELECT count(*) FROM messages`); n != before {
		t.Fatalf("outsiders have written %d entries", n-before)
	}
	if page := read[mlsapi.GetConvosOutput](t, outsider.get(mlsapi.NSIDGetConvos).ok()); len(page.Conversations) != 0 {
		t.Fatalf("an outsider's convos are %+v", page)
	}
}

// A member that was removed or has left reads and writes nothing any more. If it asks for that, it reads what was
// written before.
func TestRemovedMemberReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	alice.send(c, "before")
	alice.remove(c, bob)
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	alice.send(c, "after")
	for _, u := range []*user{bob, carol} {
		for name, a := range u.calls(c) {
			if name == "leaveConvo" {
				if out := read[mlsapi.LeaveConvoOutput](t, a.ok()); !out.Success {
					t.Fatalf("leaving again is answered with %+v", out)
				}
				continue
			}
			a.fails(http.StatusForbidden, mlsapi.ErrNotMember)
		}
		checkReadsUntilItLeft(t, u, c)
		if page := read[mlsapi.GetConvosOutput](t, u.get(mlsapi.NSIDGetConvos).ok()); len(page.Conversations) != 0 {
			t.Fatalf("a former member's convos are %+v", page)
		}
	}
	alice.add(c, bob)
	page := bob.page(c, "messageType", "all")
	if len(page.Messages) != 1 || page.Messages[0].Epoch != c.epoch-1 || *page.Messages[0].MessageType != "commit" {
		t.Fatalf("once he is back in epoch %d, bob reads %+v", c.epoch, page.Messages)
	}
}

// checkReadsUntilItLeft checks a former member's page of a log with one message, then a removal, and more.
func checkReadsUntilItLeft(t *testing.T, u *user, c *convo) {
	t.Helper()
	page := read[mlsapi.GetMessagesOutput](t,
		u.get(mlsapi.NSIDGetMessages, "convoId", c.id, "messageType", "all", "untilLeft", "true").ok())
	if len(page.Messages) != 2 || page.Cursor != nil || *page.LastSeq != page.Messages[1].Seq ||
		*page.Messages[1].MessageType != "commit" {
		t.Fatalf("a former member reads %+v", page)
	}
	last := page.Messages[1].ID
	u.get(mlsapi.NSIDGetMessages, "convoId", c.id, "messageType", "all", "untilLeft", "true", "sinceMessage", last).
		fails(http.StatusForbidden, mlsapi.ErrNotMember)
}

// Which member can remove which other.
func TestRemovalRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	remove := func(by, target *user, commit []byte) answer {
		return by.post(mlsapi.NSIDLeaveConvo,
			&mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(target.did()), Commit: commit})
	}
	commit := func() []byte { return mlstest.Commit(c.group, c.epoch, *newKey()) }
	remove(bob, carol, commit()).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	remove(bob, alice, commit()).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	remove(alice, bob, nil).fails(http.StatusBadRequest, mlsapi.ErrCommitRequired)
	remove(alice, w.user(), commit()).fails(http.StatusBadRequest, "InvalidRequest")
	remove(carol, carol, nil).ok()
	// carol has left. Any member can commit her removal.
	out := read[mlsapi.LeaveConvoOutput](t, remove(bob, carol, commit()).ok())
	if out.NewEpoch != 2 {
		t.Fatalf("tidying up after carol leads into epoch %d", out.NewEpoch)
	}
	c.epoch = 2
	remove(alice, bob, commit()).ok()
	remove(alice, alice, nil).fails(http.StatusConflict, mlsapi.ErrLastMember)
}

// senderDid must be the caller, even if all else is right.
func TestSenderMismatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	in := bob.message(c, "x")
	in.SenderDID = alice.did()
	bob.post(mlsapi.NSIDSendMessage, in).fails(http.StatusForbidden, mlsapi.ErrSenderMismatch)
}
