package api_test

import (
	"net/http"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// The server learns a group's state from one member's GroupInfo if it cannot verify the commit.
// These tests check that such a state never makes the server refuse a valid commit of another
// member.

// A member sends an encrypted commit with the GroupInfo of another commit. So the server learns a
// wrong state. The next commit in clear corrects it.
func TestWrongWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	bob.mls.HideHandshakes(true)
	another := must(bob.group.StageUpdate())(w)
	bob.group.Discard()
	in := submit(c, must(bob.group.StageUpdate())(w))
	in.GroupInfo = another.GroupInfo
	bob.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
	for _, level := range []string{"structure", "verified"} {
		alice.post(mlsapi.NSIDSubmitCommit, submit(c, must(alice.group.StageUpdate())(w))).ok()
		follow(c, alice, bob)
		if got := *bob.convo(c).CommitLevel; got != level {
			t.Fatalf("the level is %s, want %s", got, level)
		}
	}
	// A commit of bob's that contradicts his own GroupInfo is refused.
	in = submit(c, must(bob.group.StageUpdate())(w))
	bob.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
	bob.mls.HideHandshakes(false)
	forged := submit(c, must(bob.group.StageUpdate())(w))
	forged.Commit = flipped(forged.Commit, len(forged.Commit)-100)
	bob.post(mlsapi.NSIDSubmitCommit, forged).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
}

// The same if the tree is not known: a commit in clear must agree with its GroupInfo.
func TestWrongWordInClear(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	bob.mls.HideHandshakes(true)
	in := submit(c, must(bob.group.StageUpdate())(w))
	in.GroupInfo = nil
	bob.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
	bob.mls.HideHandshakes(false)
	another := must(bob.group.StageUpdate())(w)
	bob.group.Discard()
	in = submit(c, must(bob.group.StageUpdate())(w))
	right := in.GroupInfo
	in.GroupInfo = another.GroupInfo
	bob.post(mlsapi.NSIDSubmitCommit, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	in.GroupInfo = right
	bob.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
	alice.post(mlsapi.NSIDSubmitCommit, submit(c, must(alice.group.StageUpdate())(w))).ok()
	follow(c, alice, bob)
}

// A leaf with bob's name and mallory's key.
func TestGhost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mallory, bob, carol := w.user(), w.user(), w.user()
	ghost := bob.device() // a key that bob has never seen
	group := newGroup(t)
	in := mallory.creation(group, bob)
	in.GroupInfo = mallory.groupInfo(group, 1, bob, ghost)
	mallory.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	withoutWelcome := *in
	withoutWelcome.WelcomeMessage = nil
	mallory.post(mlsapi.NSIDCreateConvo, &withoutWelcome).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	in.GroupInfo = mallory.groupInfo(group, 1, bob)
	view := read[mlsapi.ConvoView](t, mallory.post(mlsapi.NSIDCreateConvo, in).ok())

	add := mallory.addition(&convo{view.ID, group, 1}, carol)
	add.GroupInfo = mallory.groupInfo(group, 2, bob, carol, carol.device())
	mallory.post(mlsapi.NSIDAddMembers, add).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	add.GroupInfo = mallory.groupInfo(group, 2, bob, carol)
	mallory.post(mlsapi.NSIDAddMembers, add).ok()
}

// An encrypted commit can remove the old leaf of a person who left, and add the same device again.
// It can also refer to an Update with which another member's device changes its key.
func TestHiddenReturnAndRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c, _ := alice.createWithInfo(bob)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	add := alice.addition(c, bob)
	bob.Device = bob.Device.Again()
	add.GroupInfo = alice.groupInfo(c.group, 2, bob)
	alice.post(mlsapi.NSIDAddMembers, add).ok()

	rotated := bob.device()
	rotated.Device.Update(t, c.group, 1)
	alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{
		ConvoID: c.id, Commit: mlstest.Commit(c.group, 2, "with bob's Update"),
		GroupInfo: alice.groupInfo(c.group, 3, rotated),
	}).ok()
}

// A removal in clear is checked even if the commit also refers to an encrypted proposal.
func TestRemovalBesideTheUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, mallory := w.user(), w.user()
	c, info := alice.createWithInfo(mallory)
	unknown := mlstest.ByReference(make([]byte, 32))
	for _, proposals := range [][][]byte{{mlstest.ByValue(mlstest.Remove(0))},
		{mlstest.ByValue(mlstest.Remove(0)), unknown}} {
		commit := mallory.Device.PublicCommit(t, info, 1, false, proposals...)
		if a := mallory.post(mlsapi.NSIDSubmitCommit,
			&mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: commit}); a.status == http.StatusOK {
			t.Fatalf("mallory has removed alice: %s", a.body)
		}
	}
	commit := mallory.Device.PublicCommit(t, info, 1, false, unknown)
	mallory.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: commit}).ok()
}

// An external commit can remove an older device of the same person. It cannot remove a device of
// another person, even of one who has left.
func TestExternalCommitRemovesNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol)
	info := read[mlsapi.GetGroupInfoOutput](t, bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	fresh := bob.user.phone()
	fresh.post(mlsapi.NSIDProcessExternalCommit,
		rejoin(c, must(fresh.mls.JoinExternal(info.GroupInfo, int(carol.group.Own())))(w))).
		fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
}

// A member that is on the roster and in the group is not added a second time. It does not lose
// messages that it has not read yet.
func TestAddedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.publish()
	in := alice.creation(newGroup(t))
	in.InitialMembers = []syntax.DID{bob.did()} // and no Welcome
	view := read[mlsapi.ConvoView](t, alice.post(mlsapi.NSIDCreateConvo, in).ok())
	c := &convo{view.ID, unhex(t, view.GroupID), view.Epoch}
	alice.send(c, "before bob is in the group")
	alice.add(c, bob)
	if n := len(bob.page(c).Messages); n != 1 {
		t.Fatalf("bob reads %d messages, and could read one before he was added", n)
	}

	anna, ben := w.phone(), w.phone()
	d := anna.found(ben)
	w.exec(`DELETE FROM welcomes WHERE convo_id = $1`, d.id) // as if ben had joined by an external commit
	second := ben.user.phone()
	staged := must(anna.group.StageAdd(anna.fetch(second)...))(w)
	anna.post(mlsapi.NSIDAddMembers, anna.addMembers(d, staged, second)).fails(http.StatusConflict,
		mlsapi.ErrAlreadyMember)
}

// Any member can remove a device that proposes its own removal, and a device whose removal an admin
// proposes (T15). Other members cannot propose it.
func TestOwnRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	for _, proposer := range []*user{alice, bob} {
		c, info := alice.createWithInfo(bob)
		propose := func(leaf, removed uint32) (answer, []byte) {
			proposal, ref := proposer.Device.PublicProposal(t, info, leaf, mlstest.Remove(removed))
			return proposer.post(mlsapi.NSIDSendMessage, &mlsapi.SendMessageInput{
				ConvoID: c.id, SenderDID: proposer.did(), Epoch: 1, Ciphertext: proposal,
			}), ref
		}
		leaf := uint32(0)
		if proposer == bob {
			leaf = 1
			refused, _ := propose(leaf, 0)
			refused.fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
		}
		sent, ref := propose(leaf, 1)
		sent.ok()
		alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{
			ConvoID: c.id, Commit: alice.Device.PublicCommit(t, info, 0, true, mlstest.ByReference(ref)),
		}).ok()
		if level := *alice.convo(c).CommitLevel; level != "verified" {
			t.Fatalf("the level is %s", level)
		}
		bob.post(mlsapi.NSIDSendMessage, bob.message(c, "after")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	}
}
