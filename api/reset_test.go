package api_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// draft makes a new group with the others, and the input that resets the convo with it. The phone
// keeps its old group until it calls adopt.
func (p *phone) draft(c *convo, others ...*phone) (in *mlsapi.ResetConvoInput, adopt func() *convo) {
	p.w.t.Helper()
	group := must(p.mls.Create(newGroup(p.w.t)))(p.w)
	in = &mlsapi.ResetConvoInput{ConvoID: c.id, Reason: "forked", IdempotencyKey: newKey()}
	if len(others) == 0 {
		in.GroupInfo = must(group.GroupInfo())(p.w)
	} else {
		staged := must(group.StageAdd(p.fetch(others...)...))(p.w)
		in.WelcomeMessage, in.GroupInfo = staged.Welcome, staged.GroupInfo
	}
	return in, func() *convo {
		if len(others) > 0 {
			if err := group.Confirm(); err != nil {
				p.w.t.Fatal(err)
			}
		}
		p.group = group
		return &convo{group: group.ID(), epoch: int64(group.Epoch())}
	}
}

// resets resets the convo with the others in the new group, and returns the successor.
func (p *phone) resets(c *convo, others ...*phone) (*convo, mlsapi.ConvoView) {
	p.w.t.Helper()
	in, adopt := p.draft(c, others...)
	view := read[mlsapi.ResetConvoOutput](p.w.t, p.post(mlsapi.NSIDResetConvo, in).ok()).Convo
	next := adopt()
	next.id = view.ID
	return next, view
}

// names returns the DIDs of a roster, sorted.
func names(view mlsapi.ConvoView) (dids []string) {
	for _, m := range view.Members {
		dids = append(dids, m.DID.String())
	}
	slices.Sort(dids)
	return dids
}

func didsOf(users ...*user) (dids []string) {
	for _, u := range users {
		dids = append(dids, u.did().String())
	}
	slices.Sort(dids)
	return dids
}

func (u *user) view(c *convo) mlsapi.ConvoView {
	u.w.t.Helper()
	return read[mlsapi.GetConvoOutput](u.w.t, u.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()).Convo
}

var successorID = regexp.MustCompile(`successorConvoId=([0-9a-f-]{36})`)

// goesOn checks that the write was refused with the successor's name.
func (a answer) goesOn(c *convo) {
	a.t.Helper()
	message := a.fails(http.StatusConflict, mlsapi.ErrConvoClosed)
	if found := successorID.FindStringSubmatch(message); found == nil || found[1] != c.id {
		a.t.Errorf("refused with %q, want successorConvoId=%s", message, c.id)
	}
}

// The old log can be read to its end, and takes nothing. The members go on in the successor: who
// has a device in the new group with its Welcome, the others by external commit.
func TestReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.phone(), w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol, dave)
	alice.send(c, "before")
	late := bob.message(c, "late")
	dave.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	next, view := bob.resets(c, alice)
	if want := didsOf(alice.user, bob.user, carol.user); !slices.Equal(names(view), want) ||
		view.Creator != alice.did() || view.Epoch != 1 || view.GroupID != hex.EncodeToString(next.group) ||
		view.PredecessorConvoID == nil || *view.PredecessorConvoID != c.id || *view.LastSeq != 1 {
		t.Errorf("the successor is %+v", view)
	}
	alice.joinWith(next)
	carol.user.fetch(next).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
	carol.comeBack(next)
	next.epoch++
	follow(next, alice, bob)
	follow(next, alice, bob, carol)
	dave.get(mlsapi.NSIDGetConvo, "convoId", next.id).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)

	// Every way into the old convo names the successor.
	bob.post(mlsapi.NSIDSendMessage, late).goesOn(next)
	carol.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id,
		Commit: mlstest.Commit(c.group, c.epoch, "x"), IdempotencyKey: newKey()}).goesOn(next)
	carol.post(mlsapi.NSIDProcessExternalCommit, &mlsapi.ProcessExternalCommitInput{ConvoID: c.id,
		Commit: mlstest.Commit(c.group, c.epoch, "x"), IdempotencyKey: newKey()}).goesOn(next)
	alice.post(mlsapi.NSIDAddMembers, &mlsapi.AddMembersInput{ConvoID: c.id, DIDList: []syntax.DID{dave.did()},
		Commit: mlstest.Commit(c.group, c.epoch, "x"), IdempotencyKey: newKey()}).goesOn(next)
	alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(carol.did()),
		Commit: mlstest.Commit(c.group, c.epoch, "x"), IdempotencyKey: newKey()}).goesOn(next)
	alice.post(mlsapi.NSIDPublishGroupInfo, &mlsapi.PublishGroupInfoInput{ConvoID: c.id,
		GroupInfo: alice.groupInfo(c.group, c.epoch)}).goesOn(next)
	again, _ := carol.draft(c)
	carol.post(mlsapi.NSIDResetConvo, again).goesOn(next)

	// A reader at any place of the old log comes to the entry that names the successor.
	old := alice.view(c)
	if old.ClosedAt == nil || old.SuccessorConvoID == nil || *old.SuccessorConvoID != next.id ||
		old.SuccessorGroupID == nil || *old.SuccessorGroupID != hex.EncodeToString(next.group) {
		t.Errorf("the old convo is %+v", old)
	}
	entries := carol.page(c, "messageType", "all").Messages
	last := entries[len(entries)-1]
	if text := string(last.Ciphertext); *last.MessageType != "reset" || last.Sender != bob.did() ||
		last.Seq != *old.LastSeq || !strings.Contains(text, "\nsuccessorConvoId "+next.id+"\n") {
		t.Errorf("the old log ends with %s %q", *last.MessageType, text)
	}
	for _, m := range carol.page(c).Messages { // as a client reads that does not know resets
		if *m.MessageType == "reset" {
			t.Error("the default selection has the entry of the reset")
		}
	}
	if first := carol.page(next, "messageType", "all").Messages[0]; *first.MessageType != "reset" || first.Seq != 1 ||
		!strings.Contains(string(first.Ciphertext), "\npredecessorConvoId "+c.id+"\n") {
		t.Errorf("the new log begins with %+v", first)
	}
	carol.send(next, "after")
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok() // the closed one can be left
	if n := len(names(alice.view(next))); n != 3 {
		t.Errorf("%d members are in the successor", n)
	}
}

// Who may not reset, and what is refused. Nothing changes.
func TestResetRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, request, outsider := w.phone(), w.phone(), w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol)
	alice.invite(c, request)
	c.epoch++
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	in, _ := bob.draft(c, alice)
	changed := func(change func(*mlsapi.ResetConvoInput)) *mlsapi.ResetConvoInput {
		other := *in
		other.IdempotencyKey = newKey()
		change(&other)
		return &other
	}
	outsider.post(mlsapi.NSIDResetConvo, in).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	carol.post(mlsapi.NSIDResetConvo, in).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	ofRequest, _ := request.draft(c)
	request.post(mlsapi.NSIDResetConvo, ofRequest).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	alice.post(mlsapi.NSIDResetConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo) // bob has signed it
	bob.post(mlsapi.NSIDResetConvo, changed(func(in *mlsapi.ResetConvoInput) { in.Reason = "two words" })).
		fails(http.StatusBadRequest, "InvalidRequest")
	bob.post(mlsapi.NSIDResetConvo, changed(func(in *mlsapi.ResetConvoInput) { in.GroupInfo = []byte("x") })).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	bob.post(mlsapi.NSIDResetConvo, changed(func(in *mlsapi.ResetConvoInput) { in.WelcomeMessage = nil })).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	for name, who := range map[string]*phone{"a former member": carol, "an outsider": outsider} {
		with, _ := bob.draft(c, who)
		message := bob.post(mlsapi.NSIDResetConvo, with).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
		if !strings.Contains(message, who.did().String()) {
			t.Errorf("%s in the new group is refused with %q", name, message)
		}
	}
	elsewhere := bob.create()
	bob.post(mlsapi.NSIDResetConvo, changed(func(in *mlsapi.ResetConvoInput) { // of a group that has a convo
		in.GroupInfo, in.WelcomeMessage = bob.groupInfo(elsewhere.group, 0), nil
	})).fails(http.StatusConflict, mlsapi.ErrGroupAlreadyExists)
	if n := w.count(`SELECT count(*) FROM convos WHERE closed_at IS NOT NULL OR predecessor_id IS NOT NULL`); n != 0 {
		t.Errorf("%d convos were changed", n)
	}
	bob.post(mlsapi.NSIDResetConvo, in).ok()
}

// Consent is that of the old convo: who had not accepted it has not accepted the successor, and who
// invited whom stays, so that reports in disputes count as before. The rights of a creator who has
// left go to the eldest member, not to the member who resets.
func TestResetKeepsConsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, erin := w.user(), w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	c.accepted(bob, carol)
	bob.add(c, dave)
	carol.add(c, erin)
	dave.accept(c) // erin does not
	w.exec(`UPDATE members SET joined_seq = 2 WHERE did = $1`, carol.did().String())
	for _, gone := range []*user{alice, bob} {
		gone.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	}
	for _, u := range []*user{dave, erin} {
		u.publish()
	}
	group := newGroup(t)
	view := read[mlsapi.ResetConvoOutput](t, carol.post(mlsapi.NSIDResetConvo, &mlsapi.ResetConvoInput{
		ConvoID: c.id, Reason: "other", IdempotencyKey: newKey(), GroupInfo: carol.groupInfo(group, 1, dave),
		WelcomeMessage: mlstest.Welcome(t, carol.claim(dave)...),
	}).ok()).Convo
	if view.Creator != dave.did() { // he has joined before carol
		t.Errorf("the creator is %s", view.Creator)
	}
	got := ""
	for _, u := range []*user{carol, dave, erin} {
		var request bool
		var invitedBy string
		err := w.db.QueryRow(t.Context(), `SELECT requested_at IS NOT NULL, coalesce(invited_by, '') FROM members
			WHERE convo_id = $1 AND did = $2`, view.ID, u.did()).Scan(&request, &invitedBy)
		if err != nil {
			t.Fatal(err)
		}
		for name, who := range map[string]*user{"alice": alice, "bob": bob, "carol": carol, "dave": dave, "erin": erin} {
			invitedBy = strings.ReplaceAll(invitedBy, who.did().String(), name)
		}
		got += fmt.Sprintf("%v %s, ", request, invitedBy)
	}
	if want := "false , false , true carol, "; got != want {
		t.Errorf("requests and inviters are %q, want %q", got, want)
	}
}

// In a dispute a member may reset who reports the disputed commit: not its committer, and not who
// could process it.
func TestResetInADispute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol, dave)
	c.accepted(bob, carol, dave)
	bob.rotate(c)
	carol.failed(c, c.epoch)
	if out := dave.failed(c, c.epoch); !out.Disputed {
		t.Fatal("nothing is in dispute")
	}
	reset := func(u *user) answer {
		return u.post(mlsapi.NSIDResetConvo, &mlsapi.ResetConvoInput{ConvoID: c.id, Reason: "undecryptable",
			IdempotencyKey: newKey(), GroupInfo: u.groupInfo(newGroup(t), 0)})
	}
	reset(alice).fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	reset(bob).fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
	reset(carol).ok()
}

// A reset is possible of a successor too, once an hour. Each convo names its neighbours.
func TestResetOfAReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	first := alice.found(bob)
	second, _ := alice.resets(first, bob)
	bob.joinWith(second)
	soon, _ := bob.draft(second)
	a := bob.post(mlsapi.NSIDResetConvo, soon)
	a.fails(http.StatusTooManyRequests, "QuotaExceeded")
	if after := a.header.Get("Retry-After"); len(after) != len("3600") {
		t.Errorf("Retry-After is %q", after)
	}
	w.exec(`UPDATE convos SET created_at = created_at - interval '1 hour' WHERE id = $1`, second.id)
	third, _ := bob.resets(second, alice)
	alice.joinWith(third)
	alice.send(third, "here")
	for _, u := range []*phone{alice, bob} {
		got := *u.view(first).SuccessorConvoID + *u.view(second).SuccessorConvoID + *u.view(third).PredecessorConvoID
		if got != second.id+third.id+second.id {
			t.Errorf("the chain is %s", got)
		}
	}
	alice.post(mlsapi.NSIDSendMessage, alice.message(first, "late")).goesOn(second)
	alice.post(mlsapi.NSIDSendMessage, alice.message(second, "late")).goesOn(third)
}

// All members reset at once, send and commit. One reset wins, and everybody else is told of its
// successor. What was acknowledged before it is in the old log.
func TestResetRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 5 {
		alice, bob, carol := w.phone(), w.phone(), w.phone()
		all := []*phone{alice, bob, carol}
		c := alice.found(bob, carol)
		calls := make([]func() answer, 0, 15)
		for _, p := range all {
			in, _ := p.draft(c)
			calls = append(calls, func() answer { return p.post(mlsapi.NSIDResetConvo, in) })
			for n := range 3 {
				in := p.message(c, fmt.Sprintf("%s %d", p.did(), n))
				calls = append(calls, func() answer { return p.post(mlsapi.NSIDSendMessage, in) })
			}
			commit := &mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: mlstest.Commit(c.group, c.epoch, p.did().String()),
				IdempotencyKey: newKey()}
			calls = append(calls, func() answer { return p.post(mlsapi.NSIDSubmitCommit, commit) })
		}
		answers := make([]answer, len(calls))
		var together sync.WaitGroup
		for i, call := range calls {
			together.Go(func() { answers[i] = call() })
		}
		together.Wait()
		successor := ""
		entries := 1 // the last one
		for i, a := range answers {
			if i%5 == 0 && a.status == http.StatusOK {
				if successor != "" {
					t.Fatal("two resets have won")
				}
				successor = read[mlsapi.ResetConvoOutput](t, a.body).Convo.ID
			} else if a.status == http.StatusOK {
				entries++
			}
		}
		for i, a := range answers {
			if i%5 == 0 && a.status != http.StatusOK {
				a.goesOn(&convo{id: successor})
			} else if a.status != http.StatusOK && !strings.Contains(string(a.body), mlsapi.ErrEpochMismatch) {
				a.goesOn(&convo{id: successor})
			}
		}
		if got := alice.page(c, "messageType", "all").Messages; len(got) != entries {
			t.Errorf("the old log has %d entries, and %d were acknowledged", len(got), entries)
		}
	}
}

// A Welcome of the old convo stays: who has not yet joined reads the old log with it, to its end.
func TestResetLeavesWelcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	alice.invite(c, carol)
	if err := alice.group.Confirm(); err != nil {
		t.Fatal(err)
	}
	c.epoch++
	text := must(alice.group.Encrypt([]byte("for carol")))(w)
	alice.post(mlsapi.NSIDSendMessage, &mlsapi.SendMessageInput{ConvoID: c.id, SenderDID: alice.did(), Epoch: c.epoch,
		Ciphertext: text, IdempotencyKey: newKey()}).ok()
	next, _ := bob.resets(c)
	carol.joinWith(c)
	m := carol.page(c, "sinceSeq", "1").Messages[0]
	if got := must(carol.group.Process(m.Ciphertext))(w); string(got.Plaintext) != "for carol" {
		t.Errorf("carol reads %+v", got)
	}
	carol.comeBack(next)
}

// The first entry of the successor names the size and the root of the old log, with its last entry.
// Members check both logs with the heads that the server signs.
func TestResetNamesTheOldHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	for n := range 300 { // more than a row of leaves
		alice.send(c, fmt.Sprint(n))
	}
	bob.send(c, "the last one")
	next, _ := bob.resets(c, alice)
	alice.send(next, "after")
	old, opened := alice.user.verifies(c), alice.user.verifies(next)
	for range 4 { // pages
		old.readAll()
	}
	opened.readAll()
	head := strings.Split(old.Newest(), "\n") // origin, size, root
	first := string(alice.page(next, "messageType", "all").Messages[0].Ciphertext)
	if want := "\nsize 302\nroot " + head[2] + "\n"; head[1] != "302" || !strings.Contains(first, want) {
		t.Errorf("the old head is of %s entries, and the new log begins with %q, want %q", head[1], first, want)
	}
	if opened.Size() != 2 {
		t.Errorf("%d entries of the new log were checked", opened.Size())
	}
}

// Who is a member of both reads the attachments of the old convo from the successor too, and can
// name them there. Who came later cannot.
func TestResetKeepsAttachments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inMemory)
	alice, bob, later := w.user(), w.user(), w.user()
	c := alice.create(bob)
	hers := alice.attach(c, 300)
	unsent := alice.attach(c, 400)
	next := &convo{group: newGroup(t)}
	bob.publish()
	next.id = read[mlsapi.ResetConvoOutput](t, alice.post(mlsapi.NSIDResetConvo, &mlsapi.ResetConvoInput{
		ConvoID: c.id, Reason: "other", IdempotencyKey: newKey(), GroupInfo: alice.groupInfo(next.group, 1, bob),
		WelcomeMessage: mlstest.Welcome(t, alice.claim(bob)...),
	}).ok()).Convo.ID
	next.epoch = 1
	alice.post(mlsapi.NSIDCreateAttachment, announcement(c, make([]byte, 10))).goesOn(next)
	alice.add(next, later)
	hers.readable(bob)
	for _, f := range []*file{hers, unsent} {
		moved := *f
		moved.convo = next
		moved.readable(bob)
		moved.get(later).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
		in := alice.message(next, f.id)
		in.EmbedURI = ptr("mlsd:attachment/" + f.id)
		alice.post(mlsapi.NSIDSendMessage, in).ok()
	}
	in := later.message(next, "not mine")
	in.EmbedURI = ptr("mlsd:attachment/" + hers.id)
	later.post(mlsapi.NSIDSendMessage, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidAsset)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok() // of the closed one
	moved := *hers
	moved.convo = next
	moved.get(bob).fails(http.StatusNotFound, mlsapi.ErrAttachmentNotFound)
}

// A reset takes receipts: members of other services are in the new group from its first epoch.
// Their homes learn that the invitations to the old convo have ended, and of the new ones.
func TestResetCarriesMembersOfOtherServices(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t)
	here, there := worlds[0], worlds[1]
	r.open(here, there)
	s := here.sender(nil)
	founder, abroad := alice.phone(), bob.phone()
	visiting := &phone{user: bob.at(here), mls: abroad.mls} // Bob's device at Alice's service
	claim := func() (packages [][]byte, receipts []string) {
		t.Helper()
		abroad.package_()
		out := read[mlsapi.GetKeyPackagesOutput](t,
			alice.at(there).get(mlsapi.NSIDGetKeyPackages, "receipts", "true", "dids", bob.did().String()).ok())
		for _, k := range out.KeyPackages {
			packages, receipts = append(packages, k.KeyPackage), append(receipts, *k.Receipt)
		}
		return packages, receipts
	}
	c := founder.found()
	packages, receipts := claim()
	add := founder.addMembers(c, must(founder.group.StageAdd(packages...))(here), visiting)
	add.Receipts = receipts
	alice.post(mlsapi.NSIDAddMembers, add).ok()
	visiting.join(c)
	here.deliver(s)
	bob.expect("invited", "open ", "new ")
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: c.id}).ok()

	group := must(founder.mls.Create(newGroup(t)))(here)
	packages, receipts = claim()
	staged := must(group.StageAdd(packages...))(here)
	reset := func(receipts ...string) *mlsapi.ResetConvoInput {
		return &mlsapi.ResetConvoInput{ConvoID: c.id, Reason: "forked", IdempotencyKey: newKey(),
			WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo, Receipts: receipts}
	}
	alice.post(mlsapi.NSIDResetConvo, reset()).fails(http.StatusNotFound, mlsapi.ErrKeyPackageNotFound)
	before := here.digest() // with the head of the old log
	alice.post(mlsapi.NSIDResetConvo, reset(receipts[0]+"x")).fails(http.StatusBadRequest, mlsapi.ErrInvalidReceipt)
	alice.post(mlsapi.NSIDResetConvo, reset(add.Receipts...)).fails(http.StatusNotFound, mlsapi.ErrKeyPackageNotFound)
	if here.digest() != before {
		t.Error("a refused reset has changed something")
	}
	in := reset(receipts...)
	first := alice.post(mlsapi.NSIDResetConvo, in).ok()
	view := read[mlsapi.ResetConvoOutput](t, first).Convo
	if want := didsOf(alice, bob); !slices.Equal(names(view), want) {
		t.Errorf("the successor has %v, want %v", names(view), want)
	}
	if n := here.count(`
		SELECT count(*) FROM sent_invitations WHERE convo_id = $1 AND (kind, state) = ('invited', 'pending')`,
		view.ID); n != 1 {
		t.Errorf("%d invitations to the successor are queued", n)
	}
	r.fails = errors.New("the other service is away")
	if again := alice.post(mlsapi.NSIDResetConvo, in).ok(); string(again) != string(first) {
		t.Errorf("first %s, then %s", first, again)
	}
	r.fails = nil
	if err := group.Confirm(); err != nil {
		t.Fatal(err)
	}
	founder.group = group
	next := &convo{id: view.ID, group: group.ID(), epoch: view.Epoch}
	visiting.joinWith(next)
	follow(next, founder, visiting)
	visiting.send(next, "after the reset")
	here.deliver(s)
	here.deliver(s)
	if states, _ := bob.told(); states != "ended open " {
		t.Errorf("the home says %q", states)
	}
}
