package mls

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVectorsApply applies the commits of the working group's conversations. The second commit of
// each is signed over the GroupContext that results from the first one. So its signature proves
// tree hash and transcript hash.
func TestVectorsApply(t *testing.T) {
	t.Parallel()
	applied, byRef, other := 0, 0, 0
	for i, v := range loadVectors[joinVector](t, "passive-client-handling-commit.json") {
		if !v.CipherSuite.Supported() {
			other++
			continue
		}
		g, _ := v.group(t)
		for n, e := range v.Epochs {
			var pending []*ProposalMessage
			for _, p := range e.Proposals {
				pending = append(pending, must(ParseProposal(p))(t))
			}
			c := must(ParseCommit(e.Commit))(t)
			before := g.Tree.Encode()
			change, err := g.Apply(c, pending...)
			if err != nil {
				t.Errorf("%d: commit %d: %v", i, n, err)
				break
			}
			if !bytes.Equal(g.Tree.Encode(), before) {
				t.Errorf("%d: commit %d changed the tree it was applied to", i, n)
			}
			if len(pending) > 0 {
				byRef++
				if _, err := g.Apply(c); !errors.Is(err, ErrUnsupported) {
					t.Errorf("%d: commit %d without its proposals: got %v", i, n, err)
				}
			}
			checkChange(t, g, change)
			checkMutations(t, g, e.Commit, pending, applied)
			g = change.Next
			applied++
		}
	}
	t.Logf("%d commits applied, %d of them with proposals by reference; %d conversations of suites that are not "+
		"supported here",
		applied, byRef, other)
}

// checkChange checks that the change is the difference between the two trees, and that a joiner
// would accept the new tree.
func checkChange(t *testing.T, g *Group, c *Change) {
	t.Helper()
	if err := c.Next.Tree.Verify(g.GroupID); err != nil {
		t.Errorf("the new tree: %v", err)
	}
	again, err := ParseTree(g.CipherSuite, c.Next.Tree.Encode())
	if err != nil || !bytes.Equal(again.Hash(), c.Next.Tree.Hash()) {
		t.Errorf("the new tree, encoded and parsed: %v", err)
	}
	want := map[uint32]Member{}
	for m := range g.Tree.Members() {
		want[m.Leaf] = m
	}
	for _, u := range c.Updates {
		if diff := cmp.Diff(want[u.Before.Leaf], u.Before); diff != "" {
			t.Errorf("update of another member: %s", diff)
		}
		want[u.After.Leaf] = u.After
	}
	for _, m := range c.Removes {
		delete(want, m.Leaf)
	}
	for _, m := range c.Adds {
		want[m.Leaf] = m.Member
	}
	got := map[uint32]Member{}
	for m := range c.Next.Tree.Members() {
		got[m.Leaf] = m
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members: %s", diff)
	}
	if c.Next.Epoch != g.Epoch+1 || !bytes.Equal(c.Next.GroupID, g.GroupID) {
		t.Errorf("epoch %d follows %d", c.Next.Epoch, g.Epoch)
	}
}

// checkMutations flips bits in all parts of a commit, and cuts it. Only a change of the two tags
// may pass, because only members can check them. The sender's signature covers the rest. Commits
// with another number are changed at other places.
func checkMutations(t *testing.T, g *Group, msg []byte, pending []*ProposalMessage, number int) {
	t.Helper()
	check := func(data []byte) error {
		c, err := ParseCommit(data)
		if err != nil {
			return err
		}
		_, err = g.Apply(c, pending...)
		return err
	}
	c := must(ParseCommit(msg))(t)
	tags := len(vec(c.ConfirmationTag))
	if c.SenderType == SenderTypeMember {
		tags += len(vec(c.parts.membershipTag))
	}
	step := 77
	if g.CipherSuite > SuiteX25519ChaCha20 { // signatures cost many times more
		step *= 47
	}
	for bit := number * 11 % step; bit < 8*(len(msg)-tags); bit += step {
		bad := bytes.Clone(msg)
		bad[bit/8] ^= 1 << (bit % 8)
		if check(bad) == nil {
			t.Errorf("accepted with bit %d of byte %d flipped", bit%8, bit/8)
		}
	}
	for n := number % 21; n < len(msg); n += 21 {
		if check(msg[:n]) == nil {
			t.Errorf("accepted cut to %d bytes", n)
		}
	}
	if check(append(bytes.Clone(msg), 0)) == nil {
		t.Error("accepted with a trailing byte")
	}
}
