package mls

import (
	"bytes"
	"errors"
	"testing"
)

// TestKeep: a group that was kept goes on as the one that was not.
func TestKeep(t *testing.T) {
	t.Parallel()
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128, SuiteX25519ChaCha20} {
		g := newGroupSpec(t, suite, 5, ext(ExtensionRequiredCapabilities, 0, 0, 0))
		for _, c := range []*commitSpec{{}, {sender: 3, proposals: [][]byte{removeOf(4)}}, {proposals: [][]byte{addOf(t, newSpec(t, suite))}}} {
			kept := must(ParseGroup(g.group.Encode()))(t)
			if !bytes.Equal(kept.Encode(), g.group.Encode()) || !bytes.Equal(kept.Context(), g.group.Context()) {
				t.Fatalf("%s: the group that was kept is another one", suite)
			}
			commit := must(ParseCommit(c.build(t, g)))(t)
			want := must(g.group.Apply(commit))(t)
			got := must(kept.Apply(commit))(t)
			if !bytes.Equal(got.Next.Encode(), want.Next.Encode()) {
				t.Fatalf("%s: the commit leads the group that was kept elsewhere", suite)
			}
			g.group = want.Next
		}
		kept := g.group.Encode()
		for n := range kept {
			if _, err := ParseGroup(kept[:n]); err == nil {
				t.Fatalf("%s: the first %d of %d bytes are a group", suite, n, len(kept))
			}
		}
		if _, err := ParseGroup(append(kept, 0)); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%s: a trailing byte: %v", suite, err)
		}
	}
}

// TestFollow: what two trees tell of the commit between them is what the commit
// says of itself.
func TestFollow(t *testing.T) {
	t.Parallel()
	g := newGroupSpec(t, SuiteX25519AES128, 5)
	dave := newSpec(t, g.suite)
	for name, c := range map[string]*commitSpec{
		"update": {sender: 2},
		"remove": {proposals: [][]byte{removeOf(4), removeOf(1)}},
		"add":    {proposals: [][]byte{addOf(t, dave)}},
		"swap":   {proposals: [][]byte{removeOf(2), addOf(t, dave)}},
	} {
		want := must(g.group.Apply(must(ParseCommit(c.build(t, g)))(t)))(t)
		next := groupSpec{suite: g.suite, members: g.members, group: want.Next}
		info := must(ParseGroupInfo(next.groupInfo(t, 3)))(t)
		got := must(g.group.Follow(&info))(t)
		if !bytes.Equal(got.Next.Encode(), want.Next.Encode()) {
			t.Errorf("%s: the group that was followed is another one", name)
		}
		leaves := func(c *Change) (leaves [3]map[uint32]bool) {
			for i := range leaves {
				leaves[i] = map[uint32]bool{}
			}
			for _, m := range c.Adds {
				leaves[0][m.Leaf] = true
			}
			for _, m := range c.Removes {
				leaves[1][m.Leaf] = true
			}
			for _, u := range c.Updates {
				leaves[2][u.After.Leaf] = true
			}
			return leaves
		}
		for i, w := range leaves(want) {
			if g := leaves(got)[i]; len(g) != len(w) {
				t.Errorf("%s: leaves %v, want %v", name, g, w)
			}
			for leaf := range w {
				if !leaves(got)[i][leaf] {
					t.Errorf("%s: leaf %d is missing", name, leaf)
				}
			}
		}
	}
}
