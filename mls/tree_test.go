package mls

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVectorsTreeMath(t *testing.T) {
	t.Parallel()
	type vector struct {
		Leaves  int          `json:"n_leaves"`
		Nodes   int          `json:"n_nodes"`
		Root    nodeIndex    `json:"root"`
		Left    []*nodeIndex `json:"left"`
		Right   []*nodeIndex `json:"right"`
		Parent  []*nodeIndex `json:"parent"`
		Sibling []*nodeIndex `json:"sibling"`
	}
	for _, v := range loadVectors[vector](t, "tree-math.json") {
		if rootOf(v.Leaves) != v.Root || v.Nodes != 2*v.Leaves-1 {
			t.Errorf("%d leaves: root %d, want %d", v.Leaves, rootOf(v.Leaves), v.Root)
		}
		for i := range v.Nodes {
			x := nodeIndex(i)
			for _, c := range []struct {
				name string
				got  func() nodeIndex
				want *nodeIndex
			}{
				{"left", x.left, v.Left[i]}, {"right", x.right, v.Right[i]},
				{"parent", x.parent, v.Parent[i]}, {"sibling", x.sibling, v.Sibling[i]},
			} {
				if c.want != nil && c.got() != *c.want {
					t.Errorf("%d leaves: %s(%d) is %d, want %d", v.Leaves, c.name, x, c.got(), *c.want)
				}
			}
			first, end := x.leaves()
			want := []uint32{uint32(i) / 2, uint32(i)/2 + 1}
			if v.Left[i] != nil {
				from, _ := v.Left[i].leaves()
				_, to := v.Right[i].leaves()
				want = []uint32{from, to}
			}
			if diff := cmp.Diff(want, []uint32{first, end}); diff != "" {
				t.Errorf("leaves below %d: %s", x, diff)
			}
		}
	}
}

type treeVector struct {
	CipherSuite CipherSuite   `json:"cipher_suite"`
	Tree        hexBytes      `json:"tree"`
	GroupID     hexBytes      `json:"group_id"`
	TreeHashes  []hexBytes    `json:"tree_hashes"`
	Resolutions [][]nodeIndex `json:"resolutions"`
}

// TestVectorsTreeValidation checks all hashes and resolutions of every tree of the working group.
// Trees of supported suites must be valid.
func TestVectorsTreeValidation(t *testing.T) {
	t.Parallel()
	verified, other := 0, 0
	for i, v := range loadVectors[treeVector](t, "tree-validation.json") {
		tree, err := ParseTree(v.CipherSuite, v.Tree)
		if err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		if !bytes.Equal(tree.Encode(), v.Tree) {
			t.Errorf("%d: encoded differently", i)
		}
		if n := len(tree.leaves) + len(tree.parents); n != len(v.TreeHashes) {
			t.Errorf("%d: %d nodes, want %d", i, n, len(v.TreeHashes))
			continue
		}
		for x, want := range v.TreeHashes {
			if !bytes.Equal(tree.hashOf(nodeIndex(x)), want) {
				t.Errorf("%d: tree hash of node %d differs", i, x)
			}
			got := []nodeIndex{}
			tree.resolve(nodeIndex(x), func(y nodeIndex) bool { got = append(got, y); return true })
			if diff := cmp.Diff(v.Resolutions[x], got); diff != "" {
				t.Errorf("%d: resolution of %d: %s", i, x, diff)
			}
		}
		if !v.CipherSuite.Supported() {
			other++
			wantError(t, tree.Verify(v.GroupID), ErrUnsupported, "cipher_suite")
			continue
		}
		verified++
		if err := tree.Verify(v.GroupID); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if members := 0; len(v.GroupID) > 0 {
			for m := range tree.Members() {
				if again, ok := tree.Member(m.Leaf); !ok || !cmp.Equal(m, again) {
					t.Errorf("%d: member %d: %+v, then %+v", i, m.Leaf, m, again)
				}
				members++
			}
			if members == 0 {
				t.Errorf("%d: no members", i)
			}
		}
	}
	t.Logf("%d trees verified, %d of suites that are not supported here", verified, other)
}

// TestVectorsTreeMutations flips every bit of some trees, and cuts them at every byte. Each result
// is refused.
func TestVectorsTreeMutations(t *testing.T) {
	t.Parallel()
	done := map[int]bool{}
	for i, v := range loadVectors[treeVector](t, "tree-validation.json") {
		kind := int(v.CipherSuite)<<16 + len(v.TreeHashes)
		if v.CipherSuite > SuiteP256AES128 || len(v.Tree) > 2500 || done[kind] {
			continue
		}
		done[kind] = true
		check := func(data []byte) error {
			tree, err := ParseTree(v.CipherSuite, data)
			if err != nil {
				return err
			}
			return tree.Verify(v.GroupID)
		}
		if err := checkExact(check, v.Tree); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		original, err := ParseTree(v.CipherSuite, v.Tree)
		if err != nil {
			t.Fatal(err)
		}
		step := 1
		if testing.Short() || len(v.Tree) > 800 {
			step = 7 // coprime to 8: every field, and every bit position
		}
		for bit := 0; bit < 8*len(v.Tree); bit += step {
			data := bytes.Clone(v.Tree)
			data[bit/8] ^= 1 << (bit % 8)
			if check(data) == nil {
				t.Errorf("%d: accepted with bit %d of byte %d flipped", i, bit%8, bit/8)
			}
			if tree, err := ParseTree(v.CipherSuite, data); err == nil && bytes.Equal(tree.Hash(), original.Hash()) {
				t.Errorf("%d: bit %d of byte %d is not in the tree hash", i, bit%8, bit/8)
			}
		}
	}
}
