package mls

import (
	"bytes"
	"testing"
)

// TestFollow checks that the difference between two trees is the change of the commit between them.
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
			t.Errorf("%s: the next group differs", name)
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
