package api_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/keypackages"
	"mlsd/mls"
)

// self-read-cas: the server compared the epoch with its own read, not with the commit's header: two
// commits of the same epoch were accepted one after the other.
func TestSelfReadCAS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	second := bob.addition(c, w.user())
	removal := &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()),
		Commit: mlstest.Commit(c.group, 1, "remove bob")}
	ahead := alice.addition(&convo{c.id, c.group, 3}, w.user())
	alice.post(mlsapi.NSIDAddMembers, alice.addition(c, w.user())).ok()

	for _, late := range []answer{bob.post(mlsapi.NSIDAddMembers, second), alice.post(mlsapi.NSIDLeaveConvo, removal)} {
		if m := late.fails(http.StatusConflict, mlsapi.ErrEpochMismatch); m != "epoch 1 is stale; currentEpoch=2" {
			t.Fatalf("the second commit of epoch 1 gets %q", m)
		}
	}
	if m := alice.post(mlsapi.NSIDAddMembers, ahead).fails(http.StatusConflict,
		mlsapi.ErrEpochMismatch); m != "epoch 3 is ahead; currentEpoch=2" {
		t.Fatalf("a commit of epoch 3 gets %q", m)
	}
	if m := alice.post(mlsapi.NSIDSendMessage, alice.message(c, "stale")).fails(http.StatusConflict,
		mlsapi.ErrEpochMismatch); m != "epoch 1 is stale; currentEpoch=2" {
		t.Fatalf("a message of epoch 1 gets %q", m)
	}
	// the request names the right epoch, but the message was made in another
	alice.post(mlsapi.NSIDSendMessage, func() *mlsapi.SendMessageInput {
		in := alice.message(c, "stale")
		in.Epoch = 2
		return in
	}()).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
}

// Of many commits of one epoch at once, over two nodes, one is accepted. The others learn the
// epoch. Their keys are still free for their next commits.
func TestOneCommitPerEpoch(t *testing.T) {
	t.Parallel()
	const n = 10
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	by := []*user{alice, bob.on(w.boot())}
	added := make([]*user, n)
	inputs := make([]*mlsapi.AddMembersInput, n)
	for i := range n {
		added[i] = w.user()
		inputs[i] = by[i%2].addition(c, added[i])
	}
	winner := -1
	for i, a := range together(n, func(i int) answer { return by[i%2].post(mlsapi.NSIDAddMembers, inputs[i]) }) {
		if a.status == http.StatusOK {
			if out := read[mlsapi.AddMembersOutput](t, a.body); winner >= 0 || out.NewEpoch != 2 || *out.Seq != 1 {
				t.Fatalf("commit %d is accepted too: %+v", i, out)
			}
			winner = i
			continue
		}
		if m := a.fails(http.StatusConflict, mlsapi.ErrEpochMismatch); m != "epoch 1 is stale; currentEpoch=2" {
			t.Fatalf("a loser gets %q", m)
		}
	}
	if winner < 0 {
		t.Fatal("no commit was accepted")
	}
	for i, u := range added {
		if i != winner {
			u.fetch(c).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound) // the Welcome of a lost commit is not delivered
		}
	}
	added[winner].fetched(c)

	loser := (winner + 1) % n
	inputs[loser].Commit = mlstest.Commit(c.group, 2, "again")
	by[loser%2].post(mlsapi.NSIDAddMembers, inputs[loser]).ok()
	added[loser].fetched(c)
}

// max-plus-one: MAX(seq)+1 gave numbers twice. One node is about to commit a message when another
// one sends; then both send at once, many times, because messages at the same moment share a
// transaction. seq is 1, 2, 3 … without a gap, and every message has its own.
func TestMaxPlusOne(t *testing.T) {
	t.Parallel()
	const rounds, each = 20, 4
	const n = rounds*each + 2
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	by := []*user{alice, bob.on(w.boot())}
	seqs := map[int64]bool{}
	sends := func(i int, body string) func() answer {
		return func() answer { return by[i].post(mlsapi.NSIDSendMessage, by[i].message(c, body)) }
	}
	answers := w.inCommit(mlsapi.NSIDSendMessage, sends(0, "in COMMIT"), sends(1, "beside it"))
	for round := range rounds {
		answers = append(answers, together(each, func(i int) answer {
			return by[i%2].post(mlsapi.NSIDSendMessage, by[i%2].message(c, fmt.Sprint("message ", round, i)))
		})...)
	}
	for i, a := range answers {
		out := read[mlsapi.SendMessageOutput](t, a.ok())
		if seqs[*out.Seq] {
			t.Fatalf("message %d is at seq %d, which another one has", i, *out.Seq)
		}
		seqs[*out.Seq] = true
	}
	page := alice.page(c)
	for i, m := range page.Messages {
		if m.Seq != int64(i+1) || !seqs[m.Seq] {
			t.Fatalf("entry %d of the log is at seq %d", i, m.Seq)
		}
	}
	if len(page.Messages) != n || *page.LastSeq != n {
		t.Fatalf("%d messages, last seq %d", len(page.Messages), *page.LastSeq)
	}
}

// epoch-zero: a convo created with members stored epoch 0.
func TestEpochZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	for _, test := range []struct {
		name    string
		members int
		change  func(in *mlsapi.CreateConvoInput, group []byte, others ...*user)
		want    int64
	}{
		{"alone", 0, nil, 0},
		{"with a Welcome", 1, nil, 1},
		{"with currentEpoch", 1, func(in *mlsapi.CreateConvoInput, _ []byte, _ ...*user) { in.CurrentEpoch = ptr[int64](7) },
			7},
		{"with a GroupInfo", 1, func(in *mlsapi.CreateConvoInput, group []byte, others ...*user) {
			in.GroupInfo = alice.groupInfo(group, 5, others...)
		}, 5},
		{"with both", 1, func(in *mlsapi.CreateConvoInput, group []byte, others ...*user) {
			in.GroupInfo, in.CurrentEpoch = alice.groupInfo(group, 5, others...), ptr[int64](5)
		}, 5},
		{"alone with a GroupInfo", 0, func(in *mlsapi.CreateConvoInput, group []byte, _ ...*user) {
			in.GroupInfo = alice.groupInfo(group, 0)
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			group := newGroup(t)
			var others []*user
			for range test.members {
				others = append(others, w.user())
			}
			in := alice.creation(group, others...)
			if test.change != nil {
				test.change(in, group, others...)
			}
			view := read[mlsapi.ConvoView](t, alice.post(mlsapi.NSIDCreateConvo, in).ok())
			epoch := read[mlsapi.GetEpochOutput](t, alice.get(mlsapi.NSIDGetEpoch, "convoId", view.ID).ok())
			if view.Epoch != test.want || epoch.CurrentEpoch != test.want {
				t.Fatalf("the convo is in epoch %d and %d, want %d", view.Epoch, epoch.CurrentEpoch, test.want)
			}
			c := &convo{view.ID, group, test.want}
			for _, u := range others {
				if out := u.fetched(c); *out.Epoch != test.want {
					t.Fatalf("the Welcome leads into epoch %d, want %d", *out.Epoch, test.want)
				}
			}
			alice.send(c, "in the first epoch")
		})
	}
	t.Run("contradictions", func(t *testing.T) {
		bob, group := w.user(), newGroup(t)
		in := alice.creation(group, bob)
		in.CurrentEpoch = ptr[int64](0)
		alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidWelcome)
		in.CurrentEpoch, in.GroupInfo = ptr[int64](1), alice.groupInfo(group, 2, bob)
		alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
		in.CurrentEpoch, in.GroupInfo = nil, alice.groupInfo(newGroup(t), 1, bob)
		alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	})
}

// off-by-one: stored the commit's epoch instead of the one it creates, or tested >.
func TestOffByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	var commits [][]byte
	for range 3 {
		in := alice.addition(c, w.user())
		commits = append(commits, in.Commit)
		out := read[mlsapi.AddMembersOutput](t, alice.post(mlsapi.NSIDAddMembers, in).ok())
		if out.NewEpoch != c.epoch+1 {
			t.Fatalf("a commit of epoch %d creates epoch %d", c.epoch, out.NewEpoch)
		}
		c.epoch = out.NewEpoch
	}
	for _, test := range []struct {
		from, to int64
		want     []int64 // epochs that are created
	}{
		{2, -1, []int64{2, 3, 4}}, {3, -1, []int64{3, 4}}, {4, -1, []int64{4}}, {5, -1, nil},
		{0, -1, []int64{2, 3, 4}}, {2, 2, []int64{2}}, {2, 3, []int64{2, 3}}, {3, 9, []int64{3, 4}}, {0, 1, nil},
	} {
		params := []string{"convoId", c.id, "fromEpoch", itoa(test.from)}
		if test.to >= 0 {
			params = append(params, "toEpoch", itoa(test.to))
		}
		out := read[mlsapi.GetCommitsOutput](t, bob.get(mlsapi.NSIDGetCommits, params...).ok())
		var got []int64
		for _, found := range out.Commits {
			got = append(got, found.Epoch)
			if found.Sender != alice.did() || string(found.CommitData) != string(commits[found.Epoch-2]) {
				t.Fatalf("the commit that creates epoch %d is another one", found.Epoch)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Fatalf("commits from %d to %d (-want +got):\n%s", test.from, test.to, diff)
		}
	}
	for _, params := range [][]string{{"6"}, {"3", "toEpoch", "2"}, {"9007199254740991"}} {
		bob.get(mlsapi.NSIDGetCommits, append([]string{"convoId", c.id, "fromEpoch"}, params...)...).
			fails(http.StatusBadRequest, mlsapi.ErrInvalidEpochRange)
	}
}

// member-list-leak: createConvo with an existing groupId returned its members.
func TestMemberListLeak(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.user(), w.user(), w.user()
	c := alice.create(bob)
	for _, by := range []*user{mallory, bob, alice} {
		a := by.post(mlsapi.NSIDCreateConvo, by.creation(c.group))
		a.fails(http.StatusConflict, mlsapi.ErrGroupAlreadyExists)
		for _, secret := range []string{alice.did().String(), bob.did().String(), c.id, hex.EncodeToString(c.group)} {
			if strings.Contains(string(a.body), secret) {
				t.Fatalf("the refusal says %s", a.body)
			}
		}
	}
}

// sub-impersonation: sub beat iss.
func TestSubImpersonation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, mallory := w.user(), w.user()
	c := alice.create()
	do := func(verb, nsid string, params []string, in any) answer {
		var body []byte
		if in != nil {
			body = encode(in)
		}
		token := mallory.Authorization(t, service, nsid, time.Now(), authtest.Claim("sub", alice.did().String()))
		return w.do(verb, nsid, query(params...), body, token)
	}
	do(http.MethodGet, mlsapi.NSIDGetEpoch, []string{"convoId", c.id}, nil).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
	do(http.MethodPost, mlsapi.NSIDSendMessage, nil, alice.message(c, "x")).fails(http.StatusForbidden,
		mlsapi.ErrSenderMismatch)
	view := read[mlsapi.ConvoView](t, do(http.MethodPost, mlsapi.NSIDCreateConvo, nil, mallory.creation(newGroup(t))).ok())
	if view.Creator != mallory.did() {
		t.Fatalf("the convo's creator is %s", view.Creator)
	}
}

// group-info-late: GroupInfo written outside the commit's transaction desynchronised joins.
func TestGroupInfoLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	alice := w.user()
	c := alice.create()
	none := func() {
		t.Helper()
		alice.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)
	}
	bob := w.user()
	in := alice.addition(c, bob)
	in.GroupInfo = alice.groupInfo(c.group, 1, bob)
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDAddMembers, failpoint.Error)
	if a := alice.post(mlsapi.NSIDAddMembers, in); a.status < 500 {
		t.Fatalf("the failed commit is answered with %d", a.status)
	}
	none()
	alice.post(mlsapi.NSIDAddMembers, in).ok()
	info := read[mlsapi.GetGroupInfoOutput](t, bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	if info.Epoch != 1 || !bytes.Equal(info.GroupInfo, in.GroupInfo) {
		t.Fatalf("after the commit the GroupInfo is another one, of epoch %d", info.Epoch)
	}
	c.epoch = 1
	carol := w.user()
	wrong := alice.addition(c, carol)
	for name, info := range map[string][]byte{
		"the old epoch": alice.groupInfo(c.group, 1, bob, carol),
		"another group": alice.groupInfo(newGroup(t), 2, bob, carol),
		"noise":         []byte("x"), "another signer": bob.groupInfo(c.group, 2, alice, carol),
		"without the new member": alice.groupInfo(c.group, 2, bob),
		"with an outsider":       alice.groupInfo(c.group, 2, bob, carol, w.user()),
	} {
		wrong.GroupInfo = info
		if a := alice.post(mlsapi.NSIDAddMembers, wrong); a.status < 400 || a.status >= 500 {
			t.Errorf("a GroupInfo of %s: %d %s", name, a.status, a.body)
		}
	}
	bobs := bob.addition(c, carol)
	bobs.GroupInfo = bob.groupInfo(c.group, 2, carol) // without alice, whom bob may not remove
	bob.post(mlsapi.NSIDAddMembers, bobs).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	alice.add(c, w.user()) // without a GroupInfo: the old one is deleted
	none()
}

// A commit is stored completely or not at all.
func TestCommitIsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, eve := w.user(), w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, eve)
	used := mlstest.Welcome(t, func() (ref []byte) { // eve's first KeyPackage, which createConvo has consumed
		if err := w.db.QueryRow(context.Background(), `SELECT ref FROM key_packages WHERE did = $1`,
			eve.did()).Scan(&ref); err != nil {
			t.Fatal(err)
		}
		return ref
	}())
	eve.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	good := alice.addition(c, carol)
	dave.publish()
	foreign := bob.claim(dave)
	change := func(f func(*mlsapi.AddMembersInput)) *mlsapi.AddMembersInput {
		in := *good
		in.IdempotencyKey = newKey()
		f(&in)
		return &in
	}
	before := w.digest()
	for _, test := range []struct {
		name   string
		in     *mlsapi.AddMembersInput
		status int
		want   string
	}{
		{"no commit", change(func(in *mlsapi.AddMembersInput) { in.Commit = nil }), 400, mlsapi.ErrCommitRequired},
		{"no Welcome", change(func(in *mlsapi.AddMembersInput) { in.WelcomeMessage = nil }), 400, mlsapi.ErrInvalidWelcome},
		{"not a commit", change(func(in *mlsapi.AddMembersInput) { in.Commit = mlstest.Message(c.group, 1, "x") }), 400,
			mlsapi.ErrInvalidCommit},
		{"another group's commit",
			change(func(in *mlsapi.AddMembersInput) { in.Commit = mlstest.Commit(newGroup(t), 1, "x") }), 400,
			mlsapi.ErrInvalidCommit},
		{"noise for a commit", change(func(in *mlsapi.AddMembersInput) { in.Commit = []byte("noise") }), 400,
			mlsapi.ErrInvalidCommit},
		{"noise for a Welcome", change(func(in *mlsapi.AddMembersInput) { in.WelcomeMessage = []byte("noise") }), 400,
			mlsapi.ErrInvalidWelcome},
		{"a Welcome for another person", change(func(in *mlsapi.AddMembersInput) { in.DIDList = []syntax.DID{dave.did()} }),
			404, mlsapi.ErrKeyPackageNotFound},
		{"a Welcome for one of two",
			change(func(in *mlsapi.AddMembersInput) { in.DIDList = append([]syntax.DID{dave.did()}, in.DIDList...) }), 400,
			mlsapi.ErrInvalidWelcome},
		{"a Welcome to a used KeyPackage", change(func(in *mlsapi.AddMembersInput) {
			in.DIDList, in.WelcomeMessage = []syntax.DID{eve.did()}, used
		}), 400, mlsapi.ErrInvalidWelcome},
		{"a KeyPackage that another has claimed", change(func(in *mlsapi.AddMembersInput) {
			in.DIDList, in.WelcomeMessage = []syntax.DID{dave.did()}, mlstest.Welcome(t, foreign...)
		}), 400, mlsapi.ErrInvalidWelcome},
		{"a member", change(func(in *mlsapi.AddMembersInput) { in.DIDList = []syntax.DID{bob.did()} }), 409,
			mlsapi.ErrAlreadyMember},
		{"the creator", change(func(in *mlsapi.AddMembersInput) { in.DIDList = []syntax.DID{alice.did()} }), 409,
			mlsapi.ErrAlreadyMember},
	} {
		alice.post(mlsapi.NSIDAddMembers, test.in).fails(test.status, test.want)
		if w.digest() != before {
			t.Fatalf("%s: the refused commit has left something behind", test.name)
		}
	}
	alice.post(mlsapi.NSIDAddMembers, good).ok()
}

// T14: a KeyPackage that was claimed in time is not added when its life is nearly over: members would
// refuse the commit for ever (RFC 9420 §7.3). The commit is refused by name, readable or not.
func TestShortLivedKeyPackage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.knows(bob, nil)
	in := alice.addition(c.convo, carol) // encrypted
	now := time.Now()
	w.exec(`DELETE FROM idempotency_keys WHERE nsid = $1`, mlsapi.NSIDGetKeyPackages)
	// claimed stands for the KeyPackage that carol has published, and its claim.
	claimed := func(body []byte, ref mls.KeyPackageRef) {
		w.exec(`UPDATE key_packages SET ref = $1, body = $2 WHERE did = $3`, []byte(ref), body, carol.did())
		w.exec(`UPDATE key_package_init_keys SET ref = $1 WHERE did = $2`, []byte(ref), carol.did())
	}
	short, ref := carol.KeyPackage(t, mlstest.Lifetime(now.Add(-time.Hour), now.Add(keypackages.CommitLife-time.Minute)))
	claimed(short, ref)
	in.WelcomeMessage = mlstest.Welcome(t, ref)
	readable := *in
	readable.IdempotencyKey = newKey()
	readable.Commit = alice.Device.PublicCommit(t, c.info, 0, false, mlstest.ByValue(mlstest.Add(short)))
	for name, refused := range map[string]*mlsapi.AddMembersInput{mlsapi.ErrInvalidWelcome: in,
		mlsapi.ErrInvalidCommit: &readable} {
		message := alice.post(mlsapi.NSIDAddMembers, refused).fails(http.StatusBadRequest, name)
		if !strings.Contains(message, "lifetime that ends at") || !strings.Contains(message, "claim another") {
			t.Error(message)
		}
	}
	good, ref := carol.KeyPackage(t)
	claimed(good, ref)
	readable.WelcomeMessage = mlstest.Welcome(t, ref)
	readable.Commit = alice.Device.PublicCommit(t, c.info, 0, false, mlstest.ByValue(mlstest.Add(good)))
	alice.post(mlsapi.NSIDAddMembers, &readable).ok()
}
