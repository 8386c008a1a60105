package mls

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzTree(f *testing.F) {
	g := newGroupSpec(f, SuiteX25519AES128, 3)
	f.Add(g.group.Tree.Encode())
	for _, c := range []*commitSpec{{}, {sender: 1}, {proposals: [][]byte{addOf(f, newSpec(f, g.suite))}}} {
		change := must(g.group.Apply(must(ParseCommit(c.build(f, g)))(f)))(f)
		f.Add(change.Next.Tree.Encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, ok := checkParse(t, "Tree", data, func(b []byte) (*Tree, error) { return ParseTree(SuiteX25519AES128, b) },
			cmp.Comparer(func(a, b *Tree) bool {
				return a == b || a != nil && b != nil && bytes.Equal(a.hashes, b.hashes)
			}))
		if !ok {
			return
		}
		if !bytes.Equal(tree.Encode(), data) {
			t.Fatal("encoded differently")
		}
		checkKind(t, tree.Verify([]byte(testGroup)))
		// The checks of Verify that come after the keys, for any keys.
		if tree.checkUnmerged() == nil {
			checkKind(t, tree.checkParentHashes())
			checkKind(t, tree.checkCapabilities())
		}
		checkKind(t, tree.checkContext(ext(ExtensionRequiredCapabilities, data...)))
	})
}

// FuzzCommit applies commits as if their signatures were valid.
func FuzzCommit(f *testing.F) {
	g := newGroupSpec(f, SuiteX25519AES128, 5)
	for _, c := range []*commitSpec{
		{}, {proposals: [][]byte{addOf(f, newSpec(f, g.suite)), removeOf(2)}},
		{noPath: true, proposals: [][]byte{pskProposal(32, "x")}},
		{external: newSpec(f, g.suite), proposals: [][]byte{
			byValue(cat(u16(6), vec(newKEMOutput(f, g.suite)))), removeOf(4)}},
	} {
		f.Add(c.build(f, g))
	}
	f.Add(publicCommit(5, testCommit(f)))
	tree := g.group.Tree.Encode()
	f.Fuzz(func(t *testing.T, data []byte) {
		c, ok := checkParse(t, "Commit", data, ParseCommit, cmp.Comparer(func(a, b *Commit) bool {
			return (a == nil) == (b == nil) && (a == nil || cmp.Equal(a.Header, b.Header) &&
				len(a.Proposals) == len(b.Proposals) && a.HasPath == b.HasPath)
		}))
		if !ok {
			return
		}
		_, err := g.group.Apply(c)
		checkKind(t, err)
		a := &applier{g: g.group, c: c, tree: g.group.Tree.clone(),
			change: &Change{External: c.SenderType == SenderTypeNewMemberCommit}}
		if !a.change.External && g.group.Tree.leaf(c.Sender) == nil {
			return
		}
		steps := []func() error{
			func() error { return a.resolve(nil) }, a.checkProposals, a.applyProposals, a.applyPath, a.checkTree,
		}
		for _, step := range steps {
			if err := step(); err != nil {
				checkKind(t, err)
				break
			}
		}
		if !bytes.Equal(g.group.Tree.Encode(), tree) {
			t.Fatal("the group's tree was modified")
		}
	})
}

// checkKind checks that an error, if any, is a ParseError of a kind that a check can return.
func checkKind(t *testing.T, err error) {
	t.Helper()
	var p *ParseError
	if err != nil && (!errors.As(err, &p) || p.Object == "" || p.Reason == "" && !errors.Is(err, ErrBadSignature) ||
		!errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrBadSignature)) {
		t.Fatalf("not a proper ParseError: %v", err)
	}
}
