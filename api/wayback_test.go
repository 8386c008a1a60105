package api_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/internal/mlstest"
)

// invite adds the other with a commit, and does not make it join.
func (p *phone) invite(c *convo, other *phone) {
	p.w.t.Helper()
	staged := must(p.group.StageAdd(p.fetch(other)...))(p.w)
	p.post(mlsapi.NSIDAddMembers, p.addMembers(c, staged, other)).ok()
}

// leaves returns the leaves of the others in p's group.
func (p *phone) leaves(others ...*phone) (found []uint32) {
	for _, leaf := range p.group.Leaves() {
		for _, o := range others {
			if leaf.Identity == o.did().String() {
				found = append(found, leaf.Index)
			}
		}
	}
	return found
}

// replacement stages a commit that replaces the leaves of again's owner. again has another
// signature key than the device that was invited: the library refuses to remove and add a key in
// one commit.
func (p *phone) replacement(again *phone) *mlsclient.Staged {
	p.w.t.Helper()
	return must(p.group.Stage(mlsclient.Change{Remove: p.leaves(again), Add: p.fetch(again)}))(p.w)
}

// joinWith enters the group by the newest Welcome.
func (p *phone) joinWith(c *convo) {
	p.w.t.Helper()
	p.group = must(p.mls.Join(p.fetched(c).Welcome))(p.w)
	p.confirm(c, true, nil).ok()
}

// comeBack enters the group by an external commit that removes the device's older leaf.
func (p *phone) comeBack(c *convo) {
	p.w.t.Helper()
	info := read[mlsapi.GetGroupInfoOutput](p.w.t, p.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok()).GroupInfo
	prior := mlsclient.NoLeaf
	for _, leaf := range must(mlsclient.ReadInfo(info))(p.w).Leaves {
		if bytes.Equal(leaf.SignatureKey, p.mls.SignatureKey()) {
			prior = int(leaf.Index)
		}
	}
	staged := must(p.mls.JoinExternal(info, prior))(p.w)
	p.post(mlsapi.NSIDProcessExternalCommit, rejoin(c, staged)).ok()
	p.group = must(p.mls.ConfirmJoin(c.group))(p.w)
}

// S6. A device that could not join with its Welcome comes back by itself. Its leaf from the failed
// invitation goes, and its Welcome is superseded.
func TestComesBackByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	alice.invite(c, carol)
	carol.fetched(c)
	carol.confirm(c, false, nil).ok()
	carol.comeBack(c)
	if got := carol.states(c); got != "superseded" {
		t.Errorf("carol's Welcome is %s", got)
	}
	carol.user.fetch(c).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
	follow(c, alice, bob)
	follow(c, alice, bob, carol)
	if n := len(alice.leaves(carol)); n != 1 {
		t.Errorf("carol has %d leaves", n)
	}
	carol.send(c, "by myself")
}

// S6. A member whose device could not join comes back by one commit of any member, which removes
// its leaf and adds its new KeyPackage. The old Welcome is superseded with it. The server sees it
// in a commit in clear, and by the GroupInfo of an encrypted one.
func TestReplacedLeaf(t *testing.T) {
	t.Parallel()
	releasing, consuming := newWorld(t, release), newWorld(t, consume)
	for name, test := range map[string]struct {
		world  *world
		hidden bool
		lose   func(w *world, carol *phone, c *convo)
		was    string
	}{
		"never fetched": {releasing, false, func(*world, *phone, *convo) {}, "superseded"},
		"failed": {releasing, true, func(_ *world, carol *phone, c *convo) {
			carol.fetched(c)
			carol.confirm(c, false, nil).ok()
		}, "superseded"},
		"fetched, grace over": {releasing, false, func(w *world, carol *phone, c *convo) {
			carol.fetched(c)
			w.age(6 * time.Minute)
		}, "superseded"},
		"consumed by silence": {consuming, true, func(w *world, carol *phone, c *convo) {
			carol.fetched(c)
			w.age(6 * time.Minute)
			w.sweepWelcomes()
			carol.user.fetch(c).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)
		}, "consumed"},
		"failed after silence": {consuming, false, func(w *world, carol *phone, c *convo) {
			carol.fetched(c)
			w.age(6 * time.Minute)
			carol.confirm(c, false, nil).ok()
		}, "consumed"},
		"expired": {releasing, false, func(w *world, _ *phone, _ *convo) {
			w.age(91 * day)
			w.sweepWelcomes()
		}, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world.within(t)
			alice, bob, carol := w.phone(), w.phone(), w.phone()
			c := alice.found(bob)
			alice.invite(c, carol)
			follow(c, alice, bob)
			test.lose(w, carol, c)
			carol = carol.user.phone()
			bob.mls.HideHandshakes(test.hidden)
			staged := bob.replacement(carol) // bob neither made the convo nor invited carol
			out := read[mlsapi.AddMembersOutput](t, bob.post(mlsapi.NSIDAddMembers, bob.addMembers(c, staged, carol)).ok())
			if out.NewEpoch != c.epoch+1 {
				t.Errorf("epoch %d", out.NewEpoch)
			}
			if got, want := carol.states(c), test.was+" available"; got != want {
				t.Errorf("carol's Welcomes are %s, want %s", got, want)
			}
			carol.joinWith(c)
			follow(c, alice, bob)
			follow(c, alice, bob, carol)
			if n := len(alice.leaves(carol)); n != 1 {
				t.Errorf("carol has %d leaves", n)
			}
			if n := len(alice.convo(c).Members); n != 3 {
				t.Errorf("%d people on the roster", n)
			}
			carol.send(c, "here I am")
		})
	}
}

// S6. The leaf of a person that was seen in the group, or that can join now, is not replaced. A
// commit that does not replace the leaf gets the answer that it always got.
func TestNotReplaced(t *testing.T) {
	t.Parallel()
	worlds := map[string]*world{"release": newWorld(t, release), "consume": newWorld(t, consume)}
	nothing := func(_, _ *phone, _ *convo) {}
	joins := func(_, carol *phone, c *convo) { carol.joinWith(c) }
	replace := func(bob, carol *phone, c *convo) (string, *mlsapi.AddMembersInput) {
		return mlsapi.ErrAlreadyMember, bob.addMembers(c, bob.replacement(carol.user.phone()), carol)
	}
	for name, test := range map[string]struct {
		before func(alice, carol *phone, c *convo)
		commit func(bob, carol *phone, c *convo) (want string, in *mlsapi.AddMembersInput)
		says   string
	}{
		"has joined": {joins, replace, "has joined"},
		"was consumed by silence, and joined later": {func(_, carol *phone, c *convo) {
			w := carol.fetched(c)
			carol.w.age(6 * time.Minute)
			carol.w.sweepWelcomes()
			carol.group = must(carol.mls.Join(w.Welcome))(carol.w)
			carol.confirm(c, true, nil).ok()
		}, replace, "has joined"},
		"has written without confirming": {func(_, carol *phone, c *convo) { carol.send(c, "no confirmation") }, replace,
			"has joined"},
		"has read without confirming": {func(alice, carol *phone, c *convo) {
			alice.send(c, "read this")
			carol.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 2}).ok()
		}, replace, "has joined"},
		"came by external commit":          {func(_, carol *phone, c *convo) { carol.comeBack(c) }, replace, "has joined"},
		"has fetched and is about to join": {func(_, carol *phone, c *convo) { carol.fetched(c) }, replace, "can join until"},
		"the leaf stays": {nothing, func(bob, carol *phone, c *convo) (string, *mlsapi.AddMembersInput) {
			staged := must(bob.group.StageAdd(bob.fetch(carol.user.phone())...))(bob.w) // another device
			return mlsapi.ErrAlreadyMember, bob.addMembers(c, staged, carol)
		}, "remove its leaf"},
		"the server cannot see it": {nothing, func(bob, carol *phone, c *convo) (string, *mlsapi.AddMembersInput) {
			bob.mls.HideHandshakes(true)
			in := bob.addMembers(c, bob.replacement(carol.user.phone()), carol)
			in.GroupInfo = nil
			return mlsapi.ErrAlreadyMember, in
		}, "GroupInfo"},
		"another's leaf goes too": {nothing, func(bob, carol *phone, c *convo) (string, *mlsapi.AddMembersInput) {
			all := append(bob.leaves(carol), 0) // alice's
			staged := must(bob.group.Stage(mlsclient.Change{Remove: all, Add: bob.fetch(carol.user.phone())}))(bob.w)
			return mlsapi.ErrNotPermitted, bob.addMembers(c, staged, carol)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			policy := "release"
			if strings.Contains(name, "silence") {
				policy = "consume"
			}
			w := worlds[policy].within(t)
			alice, bob, carol := w.phone(), w.phone(), w.phone()
			c := alice.found(bob)
			alice.invite(c, carol)
			follow(c, alice, bob)
			test.before(alice, carol, c)
			follow(c, alice, bob)
			want, in := test.commit(bob, carol, c)
			before := w.digest()
			status := http.StatusConflict
			if want == mlsapi.ErrNotPermitted {
				status = http.StatusForbidden
			}
			if message := bob.post(mlsapi.NSIDAddMembers, in).fails(status, want); !strings.Contains(message, test.says) {
				t.Errorf("the message is %q, without %q", message, test.says)
			}
			if w.digest() != before {
				t.Error("the refused commit has left something behind")
			}
		})
	}
}

// S6. A device that kept its signature key is replaced by itself, if the member's MLS library can
// do that. The group is known before, or the GroupInfo of the commit is the first one.
func TestReplacedWithItsOwnKey(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		w := newWorld(t)
		alice, bob := w.user(), w.user()
		var c *convo
		if known {
			c, _ = alice.createWithInfo(bob)
		} else {
			c = alice.create(bob)
		}
		addition := alice.addition(c, bob)
		try := func(bobs ...*mlstest.Device) answer {
			again := *addition
			again.IdempotencyKey = newKey()
			again.GroupInfo = mlstest.GroupInfo(t, c.group, 2, append([]*mlstest.Device{alice.Device}, bobs...)...)
			return alice.post(mlsapi.NSIDAddMembers, &again)
		}
		says := func(a answer, part string) {
			t.Helper()
			if message := a.fails(http.StatusConflict, mlsapi.ErrAlreadyMember); !strings.Contains(message, part) {
				t.Errorf("the message is %q, without %q", message, part)
			}
		}
		before, fresh := w.digest(), bob.Device.Again()
		if known {
			says(try(bob.Device), "adds no device")
		}
		says(try(bob.Device, fresh), "groupInfo: ")
		says(try(fresh, mlstest.NewDevice(t, bob.did().String())), "leaf 2")
		if w.digest() != before {
			t.Error("a refused commit has left something behind")
		}
		try(fresh).ok()
		if got := bob.states(c); got != "superseded available" {
			t.Errorf("bob's Welcomes are %s", got)
		}
	}
}

// S6, S7. A consumed Welcome that is asked for again says which way back there is.
func TestConsumedSaysTheWayBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, consume)
	alice, bob := w.user(), w.user()
	lost := func(c *convo, confirms bool, want string) {
		t.Helper()
		bob.fetched(c)
		if confirms {
			bob.confirm(c, true, nil).ok()
		}
		w.age(6 * time.Minute)
		if message := bob.fetch(c).fails(http.StatusGone,
			mlsapi.ErrWelcomeConsumed); message != "the Welcome has been consumed; to come back, "+want {
			t.Errorf("the message is %q, want %q", message, want)
		}
	}
	const (
		external   = "call getGroupInfo, make an external commit and send it with processExternalCommit"
		invitation = "publish a KeyPackage and ask a member to add this account again with addMembers"
		commit     = "ask a member to send the GroupInfo of its next commit, then call getGroupInfo and processExternalCommit"
	)
	lost(alice.create(bob), false, invitation)
	lost(alice.create(bob), true, commit)
	known := func() *convo {
		c, _ := alice.createWithInfo(bob)
		return c
	}
	lost(known(), false, external)
	lost(known(), true, external)
}
