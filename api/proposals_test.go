package api_test

import (
	"encoding/hex"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// knownGroup is a convo whose group the server knows.
type knownGroup struct {
	*convo
	info []byte // the GroupInfo of its first epoch
}

// knows makes a convo of u and another member, with a group that the server knows. context are
// extensions of the GroupContext.
func (u *user) knows(other *user, context []byte) knownGroup {
	u.w.t.Helper()
	group := newGroup(u.w.t)
	in := u.creation(group, other)
	in.GroupInfo = mlstest.GroupInfoWith(u.w.t, context, group, 1, u.Device, other.Device)
	view := read[mlsapi.ConvoView](u.w.t, u.post(mlsapi.NSIDCreateConvo, in).ok())
	return knownGroup{&convo{view.ID, group, 1}, in.GroupInfo}
}

// propose is the input that sends a proposal in clear.
func (u *user) propose(c knownGroup, proposal []byte) *mlsapi.SendMessageInput {
	return &mlsapi.SendMessageInput{ConvoID: c.id, SenderDID: u.did(), Epoch: c.epoch, Ciphertext: proposal,
		IdempotencyKey: newKey()}
}

// commits is the input that submits a commit of u, whose leaf is the first one.
func (u *user) commits(c knownGroup, path bool, proposals ...[]byte) *mlsapi.SubmitCommitInput {
	u.w.t.Helper()
	return &mlsapi.SubmitCommitInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: u.Device.PublicCommit(u.w.t, c.info, 0, path, proposals...),
	}
}

func (u *user) level(c knownGroup) string {
	u.w.t.Helper()
	return *u.convo(c.convo).CommitLevel
}

// M1: a member proposes its own removal with SelfRemove, and another member commits it.
func TestSelfRemove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.knows(bob, nil)
	proposal, ref := bob.Device.PublicProposal(t, c.info, 1, mlstest.SelfRemove())
	bob.post(mlsapi.NSIDSendMessage, bob.propose(c, proposal)).ok()
	// By value its sender would be the committer.
	in := alice.commits(c, true, mlstest.ByReference(ref))
	byValue := *in
	byValue.IdempotencyKey = newKey()
	byValue.Commit = alice.Device.PublicCommit(t, c.info, 0, true, mlstest.ByValue(mlstest.SelfRemove()))
	message := alice.post(mlsapi.NSIDSubmitCommit, &byValue).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	if !strings.Contains(message, "SelfRemove by value") {
		t.Error(message)
	}
	alice.post(mlsapi.NSIDSubmitCommit, in).ok()
	if level := alice.level(c); level != "verified" {
		t.Errorf("the level is %s", level)
	}
	if n := len(alice.convo(c.convo).Members); n != 1 {
		t.Errorf("%d members: a person without a device in the group is no member", n)
	}
	if n := w.count(`
		SELECT count(*) FROM (SELECT kind, convo_id, did, detail FROM outbox UNION ALL SELECT kind, convo_id, did, detail FROM
			events) e
		WHERE kind = 4 AND convo_id = $1 AND did = $2 AND detail ->> 'change' = 'left' AND detail ->> 'commitNeeded' IS
			NULL`, c.id, bob.did()); n != 1 {
		t.Errorf("%d events say that bob left and nobody need commit it", n)
	}
	// A departure that is repeated in another way changes nothing.
	out := read[mlsapi.LeaveConvoOutput](t, bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok())
	if out.NewEpoch != 2 {
		t.Errorf("bob left in epoch %d", out.NewEpoch)
	}
}

// unjudged sends a proposal while the server does not know the group, so that it can judge only the
// kind of the proposal.
func (u *user) unjudged(c knownGroup, proposal []byte) {
	u.w.t.Helper()
	u.w.exec(`UPDATE public_groups SET epoch = epoch + 1000 WHERE convo_id = $1`, c.id)
	u.post(mlsapi.NSIDSendMessage, u.propose(c, proposal)).ok()
	u.w.exec(`UPDATE public_groups SET epoch = epoch - 1000 WHERE convo_id = $1`, c.id)
}

// M1: an external commit includes another member's SelfRemove by reference, and no Remove of it.
func TestSelfRemoveInExternalCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.knows(bob, nil)
	second := alice.device()
	rejoin := func(proposal []byte) answer {
		return alice.post(mlsapi.NSIDProcessExternalCommit, &mlsapi.ProcessExternalCommitInput{
			ConvoID: c.id, IdempotencyKey: newKey(), Commit: second.Device.ExternalCommit(t, c.info, alice.Device, proposal),
		})
	}
	rejoin(mlstest.ByValue(mlstest.Remove(1))).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	proposal, ref := bob.Device.PublicProposal(t, c.info, 1, mlstest.SelfRemove())
	rejoin(mlstest.ByReference(ref)).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit) // it is not in the log
	bob.post(mlsapi.NSIDSendMessage, bob.propose(c, proposal)).ok()
	rejoin(mlstest.ByReference(ref)).ok()
	if level := alice.level(c); level != "verified" {
		t.Errorf("the level is %s", level)
	}
}

// M2: a custom proposal is delivered, and the commit that contains it or refers to it is judged at
// level structure. Its sender's signature, and the proposal's, are still checked.
func TestCustomProposal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	for name, byValue := range map[string]bool{"by value": true, "by reference": false} {
		c := alice.knows(bob, nil)
		proposal, ref := bob.Device.PublicProposal(t, c.info, 1, mlstest.Custom("a receipt"))
		bob.post(mlsapi.NSIDSendMessage, bob.propose(c, proposal)).ok()
		entry := mlstest.ByReference(ref)
		if byValue {
			entry = mlstest.ByValue(mlstest.Custom("a receipt"))
		}
		if n := len(alice.page(c.convo).Messages); n != 1 {
			t.Errorf("%s: %d messages", name, n)
		}
		// Another member's device is not the caller's, and a signature must verify.
		in := alice.commits(c, false, entry)
		in.Commit = bob.Device.PublicCommit(t, c.info, 1, false, entry)
		alice.post(mlsapi.NSIDSubmitCommit, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
		in.Commit = bob.Device.PublicCommit(t, c.info, 0, false, entry)
		alice.post(mlsapi.NSIDSubmitCommit, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
		alice.post(mlsapi.NSIDSubmitCommit, alice.commits(c, false, entry)).ok()
		if level := alice.level(c); level != "structure" {
			t.Errorf("%s: the level is %s", name, level)
		}
	}
	// A proposal that is not its sender's is refused, and so is the commit that refers to it.
	c := alice.knows(bob, nil)
	forged, ref := alice.Device.PublicProposal(t, c.info, 1, mlstest.Custom("a receipt"))
	bob.post(mlsapi.NSIDSendMessage, bob.propose(c, forged)).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	bob.unjudged(c, forged)
	alice.post(mlsapi.NSIDSubmitCommit, alice.commits(c, false, mlstest.ByReference(ref))).fails(http.StatusBadRequest,
		mlsapi.ErrInvalidCommit)
	// The rules of the roster hold for what can be read beside it.
	both := [][]byte{mlstest.ByValue(mlstest.Remove(0)), mlstest.ByValue(mlstest.Custom("x"))}
	in := bob.commits(c, true)
	in.Commit = bob.Device.PublicCommit(t, c.info, 1, true, both...)
	bob.post(mlsapi.NSIDSubmitCommit, in).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	both[0] = mlstest.ByValue(mlstest.Remove(1))
	alice.post(mlsapi.NSIDSubmitCommit, alice.commits(c, true, both...)).ok()
	if n := len(alice.convo(c.convo).Members); n != 1 {
		t.Errorf("%d members: bob has no device in the group", n)
	}
}

// M3: a commit with ReInit closes its convo, by value and by reference, whether the group is known
// or not.
func TestReInitCloses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	for name, byValue := range map[string]bool{"by value": true, "by reference": false} {
		for _, known := range []bool{true, false} {
			c := alice.knows(bob, nil)
			level := "verified"
			if !known {
				w.exec(`DELETE FROM public_groups WHERE convo_id = $1`, c.id)
				level = "structure"
			}
			successor := newGroup(t)
			entry := mlstest.ByValue(mlstest.ReInit(successor))
			if !byValue {
				proposal, ref := alice.Device.PublicProposal(t, c.info, 0, mlstest.ReInit(successor))
				alice.post(mlsapi.NSIDSendMessage, alice.propose(c, proposal)).ok()
				entry = mlstest.ByReference(ref)
			}
			before := bob.message(c.convo, "before")
			sent := bob.post(mlsapi.NSIDSendMessage, before)
			sent.ok()
			in := alice.commits(c, false, entry)
			// Bob commits what alice, who is the admin, has proposed. He cannot propose it (T13).
			closer := alice
			if !byValue {
				closer, in.Commit = bob, bob.Device.PublicCommit(t, c.info, 1, false, entry)
			}
			own := bob.commits(c, false)
			own.Commit = bob.Device.PublicCommit(t, c.info, 1, false, mlstest.ByValue(mlstest.ReInit(newGroup(t))))
			bob.post(mlsapi.NSIDSubmitCommit, own).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
			bobs, _ := bob.Device.PublicProposal(t, c.info, 1, mlstest.ReInit(newGroup(t)))
			bob.post(mlsapi.NSIDSendMessage, bob.propose(c, bobs)).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
			closing := closer.post(mlsapi.NSIDSubmitCommit, in)
			closing.ok()

			view := bob.convo(c.convo)
			if view.ClosedAt == nil || view.SuccessorGroupID == nil || *view.SuccessorGroupID != hex.EncodeToString(successor) ||
				*view.CommitLevel != level || view.Epoch != 2 {
				t.Fatalf("%s, known %v: %+v", name, known, view)
			}
			events := w.count(`
				SELECT count(*) FROM (SELECT kind, convo_id, detail FROM outbox UNION ALL SELECT kind, convo_id, detail FROM events)
					e
				WHERE kind = 3 AND convo_id = $1 AND detail ->> 'successorGroupId' = $2`, c.id, hex.EncodeToString(successor))
			if events != 1 {
				t.Errorf("%s, known %v: %d events name the successor", name, known, events)
			}
			// Retries get their first answer.
			bob.post(mlsapi.NSIDSendMessage, before).replays(sent)
			closer.post(mlsapi.NSIDSubmitCommit, in).replays(closing)
			c.epoch = 2
			isClosed(c, alice, bob)
		}
	}
}

// isClosed checks that the convo of alice and bob takes nothing more, and can be read and left.
func isClosed(c knownGroup, alice, bob *user) {
	t, w := alice.w.t, alice.w
	t.Helper()
	refused := func(a answer) {
		t.Helper()
		a.fails(http.StatusConflict, mlsapi.ErrConvoClosed)
	}
	refused(bob.post(mlsapi.NSIDSendMessage, bob.message(c.convo, "after")))
	refused(bob.post(mlsapi.NSIDSendMessage, bob.propose(c, mlstest.Proposal(c.group, 2, "after"))))
	hidden := mlstest.Commit(c.group, 2, "after")
	refused(alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: hidden}))
	refused(alice.post(mlsapi.NSIDProcessExternalCommit,
		&mlsapi.ProcessExternalCommitInput{ConvoID: c.id, Commit: hidden}))
	refused(alice.post(mlsapi.NSIDAddMembers, alice.addition(c.convo, w.user())))
	target := bob.did()
	refused(alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: &target, Commit: hidden}))
	refused(bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, Commit: hidden}))
	// An outsider does not learn of it.
	outsider := w.user()
	outsider.post(mlsapi.NSIDSendMessage, outsider.message(c.convo, "x")).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
	if len(alice.page(c.convo).Messages) == 0 {
		t.Error("no message can be read")
	}
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	if n := w.count(`
		SELECT count(*) FROM (SELECT kind, convo_id, did, detail FROM outbox UNION ALL SELECT kind, convo_id, did, detail FROM
			events) e
		WHERE kind = 4 AND convo_id = $1 AND did = $2 AND detail ->> 'change' = 'left' AND detail ->> 'commitNeeded' IS
			NULL`, c.id, bob.did()); n != 1 {
		t.Errorf("%d events say that bob left and nobody need commit it", n)
	}
	bob.post(mlsapi.NSIDSendMessage, bob.message(c.convo, "x")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
}

// M3: who leaves with the commit that closes the convo leaves nothing for the others to commit.
func TestLeaveWithReInit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.knows(bob, nil)
	alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
		ConvoID: c.id, Commit: alice.Device.PublicCommit(t, c.info, 0, false, mlstest.ByValue(mlstest.ReInit(newGroup(t)))),
	}).ok()
	if n := w.count(`
		SELECT count(*) FROM (SELECT kind, convo_id, detail FROM outbox UNION ALL SELECT kind, convo_id, detail FROM events) e
		WHERE kind = 4 AND convo_id = $1 AND detail ->> 'change' = 'left' AND detail ->> 'commitNeeded' IS NULL`,
		c.id); n != 1 {
		t.Errorf("%d events say that alice left and nobody need commit it", n)
	}
	bob.post(mlsapi.NSIDSendMessage, bob.message(&convo{c.id, c.group, 2}, "x")).fails(http.StatusConflict,
		mlsapi.ErrConvoClosed)
}

// M3: a successor whose group_id no convo can have is refused.
func TestReInitSuccessor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.knows(bob, nil)
	for _, successor := range [][]byte{nil, make([]byte, 65)} {
		message := alice.post(mlsapi.NSIDSubmitCommit, alice.commits(c, false, mlstest.ByValue(mlstest.ReInit(successor)))).
			fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
		if !strings.Contains(message, "ReInit.group_id") {
			t.Error(message)
		}
	}
	if alice.convo(c.convo).ClosedAt != nil {
		t.Error("the convo is closed")
	}
}

// M5: an external sender that the group names delivers its proposal (RFC 9420 §12.1.8.1). Nobody
// else does, and nobody proposes to add itself.
func TestExternalProposal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, service, other := w.user(), w.user(), w.user(), w.user()
	c := alice.knows(bob, mlstest.ExternalSenders(service.Device, other.Device))
	proposal := service.Device.ExternalProposal(t, c.info, 0, mlstest.Remove(1))
	in := service.propose(c, proposal)
	w.user().post(mlsapi.NSIDSendMessage, in).fails(http.StatusForbidden, mlsapi.ErrSenderMismatch)
	outsider := w.user()
	outsider.post(mlsapi.NSIDSendMessage, outsider.propose(c, proposal)).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
	other.post(mlsapi.NSIDSendMessage, other.propose(c, proposal)).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	alice.post(mlsapi.NSIDSendMessage, alice.propose(c, proposal)).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	forged := other.Device.ExternalProposal(t, c.info, 0, mlstest.Remove(1))
	service.post(mlsapi.NSIDSendMessage, service.propose(c, forged)).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)

	sent := service.post(mlsapi.NSIDSendMessage, in)
	out := read[mlsapi.SendMessageOutput](t, sent.ok())
	if *out.Seq != 1 || *out.Epoch != 1 {
		t.Errorf("appended at %d of epoch %d", *out.Seq, *out.Epoch)
	}
	service.post(mlsapi.NSIDSendMessage, in).replays(sent)
	conflict := *in
	conflict.Ciphertext = service.Device.ExternalProposal(t, c.info, 0, mlstest.Remove(0))
	service.post(mlsapi.NSIDSendMessage, &conflict).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)

	newcomer := w.user()
	message := newcomer.post(mlsapi.NSIDSendMessage, newcomer.propose(c, newcomer.Device.NewMemberProposal(t, c.info))).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	if !strings.Contains(message, "new_member_proposal") || !strings.Contains(message, "addMembers") {
		t.Error(message)
	}
	// The epoch moves. The retry still gets its first answer, and another proposal of the old epoch
	// none.
	alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: mlstest.Commit(c.group, 1, "x"),
		GroupInfo: mlstest.GroupInfoWith(t, mlstest.ExternalSenders(service.Device, other.Device), c.group, 2, alice.Device,
			bob.Device)}).ok()
	service.post(mlsapi.NSIDSendMessage, in).replays(sent)
	late := other.propose(c, other.Device.ExternalProposal(t, c.info, 1, mlstest.Remove(1)))
	other.post(mlsapi.NSIDSendMessage, late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	service.get(mlsapi.NSIDGetMessages, "convoId", c.id).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
}

// S7: the group is not parsed for who may not propose. While its state cannot be parsed, who may
// propose gets an error of the server, and everybody else the answer that they always get.
func TestOutsidersProposalParsesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	alice, bob, service, outsider := w.user(), w.user(), w.user(), w.user()
	c := alice.knows(bob, mlstest.ExternalSenders(service.Device))
	proposal := service.Device.ExternalProposal(t, c.info, 0, mlstest.Remove(1))
	w.exec(`UPDATE public_groups SET state = 'x' || state WHERE convo_id = $1`, c.id)
	outsider.post(mlsapi.NSIDSendMessage, outsider.propose(c, proposal)).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
	bob.post(mlsapi.NSIDSendMessage, bob.propose(c, proposal)).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	service.post(mlsapi.NSIDSendMessage, service.propose(c, proposal)).fails(http.StatusInternalServerError,
		"InternalServerError")
	w.exec(`UPDATE public_groups SET state = substring(state FROM 2) WHERE convo_id = $1`, c.id)
	service.post(mlsapi.NSIDSendMessage, service.propose(c, proposal)).ok()
}

// S7: a proposal of an external sender waits for its turn as other expensive requests do.
func TestExternalProposalIsExpensive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, outsider := w.user(), w.user(), w.user()
	c := alice.knows(bob, mlstest.ExternalSenders(w.user().Device))
	proposal := outsider.propose(c, outsider.Device.ExternalProposal(t, c.info, 0, mlstest.Remove(1)))
	release := w.server.HoldExpensive()
	answers := make(chan answer, 1)
	go func() { answers <- outsider.post(mlsapi.NSIDSendMessage, proposal) }()
	for w.server.ExpensiveWaiting() < 1 && len(answers) == 0 {
		runtime.Gosched()
	}
	if len(answers) > 0 {
		t.Error("the proposal did not wait")
	}
	alice.send(c.convo, "hello")
	release()
	(<-answers).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
}
