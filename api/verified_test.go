package api_test

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
)

// phone is a device with real MLS.
type phone struct {
	*user
	mls   mlsclient.Device
	group mlsclient.Group
}

func (w *world) phone() *phone { return w.user().phone() }

// phone is another device of the same person.
func (u *user) phone() *phone {
	u.w.t.Helper()
	d, err := mlsclient.NewDevice(u.did().String(), mlsclient.SuiteX25519)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return &phone{user: u, mls: d}
}

// must fails the test on an error.
func must[T any](v T, err error) func(*world) T {
	return func(w *world) T {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
		return v
	}
}

// package_ publishes one KeyPackage of the device.
func (p *phone) package_() mlsclient.KeyPackage {
	p.w.t.Helper()
	kp := must(p.mls.KeyPackage())(p.w)
	p.post(mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{
		KeyPackage: kp.Message, CipherSuite: mlsclient.SuiteX25519.Name(), IdempotencyKey: newKey(),
	}).ok()
	return kp
}

// fetch publishes a KeyPackage of each of the others and claims them.
func (p *phone) fetch(others ...*phone) (packages [][]byte) {
	p.w.t.Helper()
	for _, o := range others {
		o.package_()
		out := read[mlsapi.GetKeyPackagesOutput](p.w.t, p.get(mlsapi.NSIDGetKeyPackages, "dids", o.did().String()).ok())
		for _, k := range out.KeyPackages {
			packages = append(packages, k.KeyPackage)
		}
	}
	return packages
}

// join takes the device's Welcome and enters the group.
func (p *phone) join(c *convo) {
	p.w.t.Helper()
	params := []string{"convoId", c.id, "keyPackageRef", p.mls.Refs()[0]}
	out := read[mlsapi.GetWelcomeOutput](p.w.t, p.get(mlsapi.NSIDGetWelcome, params...).ok())
	p.group = must(p.mls.Join(out.Welcome))(p.w)
	p.post(mlsapi.NSIDConfirmWelcome,
		&mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true, KeyPackageRef: out.KeyPackageRef}).ok()
}

// found makes a convo whose group the server knows.
func (p *phone) found(others ...*phone) *convo {
	p.w.t.Helper()
	p.group = must(p.mls.Create(newGroup(p.w.t)))(p.w)
	staged := must(p.group.StageAdd(p.fetch(others...)...))(p.w)
	in := &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(p.group.ID()), CipherSuite: mlsclient.SuiteX25519.Name(), IdempotencyKey: newKey(),
		WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo,
	}
	for _, o := range others {
		in.InitialMembers = append(in.InitialMembers, o.did())
	}
	view := read[mlsapi.ConvoView](p.w.t, p.post(mlsapi.NSIDCreateConvo, in).ok())
	if err := p.group.Confirm(); err != nil {
		p.w.t.Fatal(err)
	}
	c := &convo{id: view.ID, group: p.group.ID(), epoch: view.Epoch}
	for _, o := range others {
		o.join(c)
	}
	return c
}

// addMembers is the input that adds the others with a commit.
func (p *phone) addMembers(c *convo, staged *mlsclient.Staged, others ...*phone) *mlsapi.AddMembersInput {
	in := &mlsapi.AddMembersInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: staged.Commit, WelcomeMessage: staged.Welcome,
		GroupInfo: staged.GroupInfo,
	}
	for _, o := range others {
		in.DIDList = append(in.DIDList, o.did())
	}
	return in
}

// submit is the input that submits a commit.
func submit(c *convo, staged *mlsclient.Staged) *mlsapi.SubmitCommitInput {
	return &mlsapi.SubmitCommitInput{
		ConvoID: c.id, IdempotencyKey: newKey(), Commit: staged.Commit, WelcomeMessage: staged.Welcome,
		GroupInfo: staged.GroupInfo,
	}
}

// rejoin is the input that submits an external commit.
func rejoin(c *convo, staged *mlsclient.Staged) *mlsapi.ProcessExternalCommitInput {
	return &mlsapi.ProcessExternalCommitInput{ConvoID: c.id, IdempotencyKey: newKey(), Commit: staged.Commit,
		GroupInfo: staged.GroupInfo}
}

// follow has the phones read the log's newest commit.
func follow(c *convo, phones ...*phone) {
	for _, p := range phones {
		p.w.t.Helper()
		out := read[mlsapi.GetCommitsOutput](p.w.t,
			p.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", itoa(int64(p.group.Epoch())+1)).ok())
		for _, commit := range out.Commits {
			if _, err := p.group.Process(commit.CommitData); err != nil {
				p.w.t.Fatal(err)
			}
		}
		c.epoch = int64(p.group.Epoch())
	}
	for _, p := range phones {
		if !bytes.Equal(p.group.Authenticator(), phones[0].group.Authenticator()) {
			p.w.t.Fatal("the members do not agree on the group")
		}
	}
}

func (u *user) convo(c *convo) mlsapi.ConvoView {
	u.w.t.Helper()
	return read[mlsapi.GetConvoOutput](u.w.t, u.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()).Convo
}

// flipped returns b with one bit inverted.
func flipped(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[at] ^= 1
	return out
}

// A commit in clear is verified. It must do what the request says and nothing else.
func TestVerifiedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave := w.phone(), w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	if level := *alice.convo(c).CommitLevel; level != "verified" {
		t.Fatalf("the new convo's level is %s", level)
	}
	addCarol := must(alice.group.StageAdd(alice.fetch(carol)...))(w)
	good := alice.addMembers(c, addCarol, carol)
	alice.group.Discard()
	both := must(alice.group.StageAdd(alice.fetch(carol, dave)...))(w)
	addBoth := alice.addMembers(c, both, carol)
	alice.group.Discard()
	davesOwn := must(dave.mls.KeyPackage())(w) // never published
	unpublished := alice.addMembers(c, must(alice.group.StageAdd(davesOwn.Message))(w), dave)
	alice.group.Discard()
	update := must(alice.group.StageUpdate())(w)
	alice.group.Discard()
	bobs := must(bob.group.StageUpdate())(w)
	bob.group.Discard()
	bobRemovesAlice := must(bob.group.StageRemove(alice.did().String()))(w)
	bob.group.Discard()
	bobsInfo := must(bob.group.GroupInfo())(w)
	withTablet := must(alice.group.StageAdd(alice.fetch(carol, alice.user.phone())...))(w)
	alice.group.Discard()

	add := func(f func(*mlsapi.AddMembersInput)) *mlsapi.AddMembersInput {
		in := *good
		in.IdempotencyKey = newKey()
		f(&in)
		return &in
	}
	before := w.digest()
	for _, test := range []struct {
		name string
		a    func() answer
		want string
		says string // part of the message
	}{
		{"adds another person", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.DIDList = []syntax.DID{dave.did()} }))
		}, mlsapi.ErrInvalidCommit, "§5.3"},
		{"adds one too many", func() answer { return alice.post(mlsapi.NSIDAddMembers, addBoth) }, mlsapi.ErrInvalidCommit,
			"§5.3"},
		{"adds one too few", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.DIDList = append(in.DIDList, dave.did()) }))
		}, mlsapi.ErrInvalidCommit, "adds no device"},
		{"adds no member", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.Commit, in.GroupInfo = update.Commit, update.GroupInfo }))
		}, mlsapi.ErrInvalidCommit, "adds no device"},
		{"adds an unknown KeyPackage", func() answer { return alice.post(mlsapi.NSIDAddMembers, unpublished) },
			mlsapi.ErrKeyPackageNotFound, ""},
		{"with another commit's Welcome", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.WelcomeMessage = unpublished.WelcomeMessage }))
		}, mlsapi.ErrKeyPackageNotFound, ""},
		{"with a Welcome for more", func() answer {
			return alice.post(mlsapi.NSIDAddMembers, add(func(in *mlsapi.AddMembersInput) { in.WelcomeMessage = both.Welcome }))
		}, mlsapi.ErrKeyPackageNotFound, ""}, // the request does not add dave
		{"with a Welcome for other KeyPackages of the same people", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.WelcomeMessage = withTablet.Welcome }))
		}, mlsapi.ErrInvalidWelcome, "which the commit adds"},
		{"with a flipped bit", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.Commit = flipped(in.Commit, len(in.Commit)-100) }))
		}, mlsapi.ErrInvalidCommit, "§6.1"},
		{"by another member's device", func() answer { return alice.post(mlsapi.NSIDSubmitCommit, submit(c, bobs)) },
			mlsapi.ErrInvalidCommit, "§6.1"},
		{"that adds by submitCommit", func() answer { return alice.post(mlsapi.NSIDSubmitCommit, submit(c, addCarol)) },
			mlsapi.ErrInvalidCommit, "§5.3"},
		{"that removes without the right",
			func() answer { return bob.post(mlsapi.NSIDSubmitCommit, submit(c, bobRemovesAlice)) }, mlsapi.ErrNotPermitted, ""},
		{"that removes no member", func() answer {
			return alice.post(mlsapi.NSIDLeaveConvo,
				&mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: update.Commit})
		}, mlsapi.ErrInvalidCommit, "leaves a device"},
		{"that removes and adds", func() answer {
			return alice.post(mlsapi.NSIDLeaveConvo,
				&mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: addCarol.Commit})
		}, mlsapi.ErrInvalidCommit, "§5.3"},
		{"with a corrupted GroupInfo", func() answer {
			return alice.post(mlsapi.NSIDAddMembers,
				add(func(in *mlsapi.AddMembersInput) { in.GroupInfo = flipped(in.GroupInfo, len(in.GroupInfo)-1) }))
		}, mlsapi.ErrInvalidGroupInfo, "§12.4.3"},
		{"with another commit's GroupInfo", func() answer {
			return alice.post(mlsapi.NSIDAddMembers, add(func(in *mlsapi.AddMembersInput) { in.GroupInfo = both.GroupInfo }))
		}, mlsapi.ErrInvalidGroupInfo, "§12.4.3"},
		{"with the old epoch's GroupInfo", func() answer {
			return alice.post(mlsapi.NSIDAddMembers, add(func(in *mlsapi.AddMembersInput) { in.GroupInfo = bobsInfo }))
		}, mlsapi.ErrInvalidGroupInfo, "epoch"},
	} {
		a := test.a()
		var status int
		switch test.want {
		case mlsapi.ErrKeyPackageNotFound:
			status = http.StatusNotFound
		case mlsapi.ErrNotPermitted:
			status = http.StatusForbidden
		default:
			status = http.StatusBadRequest
		}
		t.Run(test.name, func(t *testing.T) {
			a.t = t
			if message := a.fails(status, test.want); !strings.Contains(message, test.says) {
				t.Errorf("the message is %q, without %q", message, test.says)
			}
			if w.digest() != before {
				t.Error("the refused commit has left something behind")
			}
		})
	}
	alice.post(mlsapi.NSIDAddMembers, good).ok()
	follow(c, bob)
	if level := *bob.convo(c).CommitLevel; level != "verified" {
		t.Fatalf("the level after the commit is %s", level)
	}
}

// submitCommit rotates keys, and adds and removes devices of the committer's own.
func TestSubmitCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)

	in := submit(c, must(bob.group.StageUpdate())(w))
	first := bob.post(mlsapi.NSIDSubmitCommit, in)
	if out := read[mlsapi.SubmitCommitOutput](t, first.ok()); out.NewEpoch != 2 || out.Seq != 1 {
		t.Fatalf("%+v", out)
	}
	bob.post(mlsapi.NSIDSubmitCommit, in).replays(first)
	follow(c, alice, bob)

	tablet := bob.phone()
	add := must(bob.group.StageAdd(bob.fetch(tablet)...))(w)
	without := submit(c, add)
	without.WelcomeMessage = nil
	bob.post(mlsapi.NSIDSubmitCommit, without).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, add)).ok()
	tablet.join(c)
	follow(c, alice, bob, tablet)
	if n := len(alice.convo(c).Members); n != 2 {
		t.Fatalf("%d members after a device was added", n)
	}

	leaf := slices.IndexFunc(tablet.group.Leaves(),
		func(l mlsclient.Leaf) bool { return bytes.Equal(l.SignatureKey, bob.mls.SignatureKey()) })
	remove := must(tablet.group.Stage(mlsclient.Change{Remove: []uint32{tablet.group.Leaves()[leaf].Index}}))(w)
	tablet.post(mlsapi.NSIDSubmitCommit, submit(c, remove)).ok()
	follow(c, alice, tablet)
	if n := w.count(`SELECT count(*) FROM members WHERE convo_id = $1 AND left_at IS NULL`, c.id); n != 2 {
		t.Fatalf("%d members after a device was removed", n)
	}
}

// A device that lost its state joins again by an external commit, and reads what is sent
// afterwards.
func TestRejoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	for name, fresh := range map[string]*phone{
		"a new device":        bob.user.phone(),
		"with its old key":    {user: bob.user, mls: must(bob.mls.Reborn(true))(w)},
		"after a lost answer": bob.user.phone(),
	} {
		info := read[mlsapi.GetGroupInfoOutput](t, fresh.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
		if info.Epoch != c.epoch {
			t.Fatalf("the GroupInfo is of epoch %d, the convo in %d", info.Epoch, c.epoch)
		}
		prior := slices.IndexFunc(alice.group.Leaves(),
			func(l mlsclient.Leaf) bool { return l.Identity == bob.did().String() })
		staged := must(fresh.mls.JoinExternal(info.GroupInfo, int(alice.group.Leaves()[prior].Index)))(w)
		in := rejoin(c, staged)
		first := fresh.post(mlsapi.NSIDProcessExternalCommit, in)
		if out := read[mlsapi.ProcessExternalCommitOutput](t, first.ok()); out.NewEpoch != c.epoch+1 {
			t.Fatalf("%s: %+v", name, out)
		}
		fresh.post(mlsapi.NSIDProcessExternalCommit, in).replays(first)
		fresh.group = must(fresh.mls.ConfirmJoin(c.group))(w)
		follow(c, alice, fresh)
		text := must(alice.group.Encrypt([]byte("welcome back")))(w)
		alice.post(mlsapi.NSIDSendMessage, &mlsapi.SendMessageInput{
			ConvoID: c.id, SenderDID: alice.did(), Epoch: c.epoch, IdempotencyKey: newKey(), Ciphertext: text,
		}).ok()
		page := fresh.page(c)
		got := must(fresh.group.Process(page.Messages[len(page.Messages)-1].Ciphertext))(w)
		if string(got.Plaintext) != "welcome back" || got.Sender != alice.did().String() {
			t.Fatalf("%s: read %q of %s", name, got.Plaintext, got.Sender)
		}
		if n := len(fresh.group.Leaves()); n != 2 {
			t.Fatalf("%s: %d leaves, the lost state's is still there", name, n)
		}
	}
}

// open-join: an outsider's external commit was accepted. self-rejoin: a removed member rejoined by
// external commit. group-info-open: GroupInfo without a membership check.
func TestOpenJoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	info := read[mlsapi.GetGroupInfoOutput](t, bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	staged := must(mallory.mls.JoinExternal(info.GroupInfo, mlsclient.NoLeaf))(w)
	before := w.digest()
	in := rejoin(c, staged)
	outsider := mallory.post(mlsapi.NSIDProcessExternalCommit, in)
	outsider.fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	in.ConvoID = "0190aaaa-0000-7000-8000-000000000000"
	if unknown := mallory.post(mlsapi.NSIDProcessExternalCommit, in); !bytes.Equal(unknown.body, outsider.body) {
		t.Errorf("an outsider gets %s, and of no convo %s", outsider.body, unknown.body)
	}
	// A member cannot add an outsider's device, and cannot remove another's.
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, staged)).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	theft := must(bob.user.phone().mls.JoinExternal(info.GroupInfo, int(alice.group.Own())))(w)
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, theft)).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	// An external commit has a method of its own.
	fresh := must(bob.user.phone().mls.JoinExternal(info.GroupInfo, mlsclient.NoLeaf))(w)
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, fresh)).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, must(bob.group.StageUpdate())(w))).fails(http.StatusBadRequest,
		mlsapi.ErrInvalidCommit)
	bob.mls.HideHandshakes(true)
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, must(bob.group.StageUpdate())(w))).fails(http.StatusBadRequest,
		mlsapi.ErrInvalidCommit)
	// An external commit brings the GroupInfo of its own epoch.
	for _, wrong := range [][]byte{info.GroupInfo, flipped(fresh.GroupInfo, len(fresh.GroupInfo)-1)} {
		in := rejoin(c, fresh)
		in.GroupInfo = wrong
		bob.post(mlsapi.NSIDProcessExternalCommit, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	}
	if w.digest() != before {
		t.Error("a refused external commit has left something behind")
	}
}

func TestSelfRejoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol)
	info := read[mlsapi.GetGroupInfoOutput](t, bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	early := must(bob.user.phone().mls.JoinExternal(info.GroupInfo, mlsclient.NoLeaf))(w)
	remove := must(alice.group.StageRemove(bob.did().String()))(w)
	alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
		ConvoID: c.id, TargetDID: ptr(bob.did()), Commit: remove.Commit, GroupInfo: remove.GroupInfo,
		IdempotencyKey: newKey(),
	}).ok()
	follow(c, alice, carol)
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, early)).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	// It cannot join even with the newest GroupInfo, which another member has leaked.
	leaked := read[mlsapi.GetGroupInfoOutput](t, carol.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	late := must(bob.user.phone().mls.JoinExternal(leaked.GroupInfo, mlsclient.NoLeaf))(w)
	bob.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, late)).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	carol.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, late)).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	// A member that has left cannot join either, while its leaf is still in the tree.
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	carol.post(mlsapi.NSIDSubmitCommit, submit(c, must(carol.group.StageUpdate())(w))).fails(http.StatusForbidden,
		mlsapi.ErrNotMember)
	again := must(carol.user.phone().mls.JoinExternal(leaked.GroupInfo, int(carol.group.Own())))(w)
	carol.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, again)).fails(http.StatusForbidden, mlsapi.ErrNotMember)
}

func TestGroupInfoOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok()
	a := mallory.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id)
	a.fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	if b := mallory.get(mlsapi.NSIDGetGroupInfo, "convoId", "0190aaaa-0000-7000-8000-000000000000"); !bytes.Equal(a.body,
		b.body) {
		t.Errorf("an outsider gets %s, and of no convo %s", a.body, b.body)
	}
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).fails(http.StatusForbidden, mlsapi.ErrNotMember)
}

// The levels of a convo's commits, and how the server loses and learns the tree.
func TestCommitLevels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	step := func(name string, hidden, info bool, level string, known bool) {
		t.Helper()
		alice.mls.HideHandshakes(hidden)
		in := submit(c, must(alice.group.StageUpdate())(w))
		if !info {
			in.GroupInfo = nil
		}
		alice.post(mlsapi.NSIDSubmitCommit, in).ok()
		follow(c, alice, bob)
		if got := *bob.convo(c).CommitLevel; got != level {
			t.Fatalf("%s: the level is %s, want %s", name, got, level)
		}
		if a := bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id); (a.status == http.StatusOK) != known {
			t.Fatalf("%s: GroupInfo %d %s", name, a.status, a.body)
		}
	}
	step("public", false, true, "verified", true)
	step("public, without a GroupInfo", false, false, "verified", false)
	step("public again", false, true, "verified", true)
	step("hidden, with a GroupInfo", true, true, "header", true)
	step("public after it", false, true, "verified", true)
	step("hidden, without a GroupInfo", true, false, "header", false)
	step("public, tree unknown", false, false, "structure", false)
	fresh := bob.user.phone()
	info := must(alice.group.GroupInfo())(w) // from another channel
	out := must(fresh.mls.JoinExternal(info, mlsclient.NoLeaf))(w)
	fresh.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, out)).fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)
	step("public, tree found", false, true, "structure", true)
	step("public, tree known", false, true, "verified", true)
}

// An encrypted commit with a GroupInfo cannot change the roster in a way that a commit in clear
// cannot.
func TestHiddenRosterChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	bob.mls.HideHandshakes(true)
	remove := must(bob.group.StageRemove(alice.did().String()))(w)
	bob.group.Discard()
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, remove)).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	add := must(bob.group.StageAdd(bob.fetch(carol)...))(w)
	bob.group.Discard()
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, add)).fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	bob.post(mlsapi.NSIDAddMembers, bob.addMembers(c, add, carol)).ok()
	carol.join(c)
	follow(c, alice, carol)
}

// The public group is stored in the transaction of its commit.
func TestPublicGroupIsOfTheCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	in := submit(c, must(bob.group.StageUpdate())(w))
	before := w.digest()
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDSubmitCommit, failpoint.Error)
	if a := bob.post(mlsapi.NSIDSubmitCommit, in); a.status < 500 {
		t.Fatalf("the failed commit is answered with %d", a.status)
	}
	if w.digest() != before {
		t.Fatal("the failed commit has left something behind")
	}
	bob.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
}

// A Welcome for a device that is removed, or that has joined by itself, has no effect.
func TestWelcomeOfGoneDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.phone(), w.phone()
	c := alice.found(bob)
	tablet := bob.user.phone()
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, must(bob.group.StageAdd(bob.fetch(tablet)...))(w))).ok()
	follow(c, alice, bob)
	ref := tablet.mls.Refs()[0]
	leaf := slices.IndexFunc(bob.group.Leaves(),
		func(l mlsclient.Leaf) bool { return bytes.Equal(l.SignatureKey, tablet.mls.SignatureKey()) })
	remove := must(bob.group.Stage(mlsclient.Change{Remove: []uint32{bob.group.Leaves()[leaf].Index}}))(w)
	bob.post(mlsapi.NSIDSubmitCommit, submit(c, remove)).ok()
	tablet.get(mlsapi.NSIDGetWelcome, "convoId", c.id, "keyPackageRef", ref).fails(http.StatusNotFound,
		mlsapi.ErrWelcomeNotFound)
	follow(c, alice, bob)
}
