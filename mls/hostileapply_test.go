package mls

import (
	"strconv"
	"testing"
)

// hostileApply applies members' commits of about size bytes, and small commits that refer to many
// proposals. All have a valid signature.
func hostileApply(t testing.TB, size int) (all []hostileInput) {
	g := newGroupSpec(t, SuiteX25519AES128, 5)
	apply := func(name string, g *groupSpec, c *commitSpec, field string) {
		msg := c.build(t, g)
		all = append(all, hostileInput{"Group.Apply/" + name, func() error {
			parsed, err := ParseCommit(msg)
			if err == nil {
				_, err = g.group.Apply(parsed, c.pending...)
			}
			return err
		}, field})
	}
	noPath := func(proposals ...[]byte) *commitSpec { return &commitSpec{noPath: true, proposals: proposals} }
	repeat := func(n int, unit func(int) []byte) (list [][]byte) {
		for i := range n {
			list = append(list, unit(i))
		}
		return list
	}
	psk := func(i int) []byte { return pskProposal(32, strconv.Itoa(i)) }
	apply("removes of a blank", g,
		&commitSpec{noPath: true, proposals: repeat(size/7, func(int) []byte { return removeOf(6) })}, "Commit.path")
	apply("psks", g, noPath(repeat(size/45, psk)...), "")
	apply("unknown references", g,
		noPath(repeat(size/34, func(int) []byte { return cat(u8(2), vec(make([]byte, 32))) })...), "Commit.proposals")
	apply("ciphertexts", g, &commitSpec{secrets: func(s [][]byte) [][]byte {
		return repeat(size/3/len(s[0]), func(int) []byte { return s[0] })
	}}, "UpdatePathNode.encrypted_path_secret")
	apply("adds", g, noPath(repeat(size/262, func(int) []byte { return addOf(t, smallestPackage(t)) })...), "")

	required := cat(vec(), vec(u16s(size/2-16)), vec()) // the extension list stays within its limit
	apply("required capabilities", g,
		&commitSpec{proposals: [][]byte{contextProposal(ext(ExtensionRequiredCapabilities, required...))}}, "Capabilities")

	pending := func(name string, g *groupSpec, n int, propose func(i int) []byte) {
		c := &commitSpec{noPath: true}
		for i := range n {
			m := must(ParseProposal(propose(i)))(t)
			c.pending = append(c.pending, m)
			c.proposals = append(c.proposals, cat(u8(2), vec(m.ref(g.suite))))
		}
		apply(name, g, c, "")
	}
	byMember := func(g *groupSpec) func(i int) []byte {
		return func(i int) []byte { return proposeAs(t, g, g.members[1], member(1), psk(i)[1:]) }
	}
	pending("pending proposals", g, size/34, byMember(g))
	long := newGroupSpec(t, SuiteX25519AES128, 5, ext(0x2a2a, make([]byte, size)...))
	pending("pending proposals, long context", long, size/34, byMember(long))
	outsider := newSpec(t, SuiteX25519AES128)
	last := size / 4
	many := newGroupSpec(t, SuiteX25519AES128, 5, ext(ExtensionExternalSenders,
		vec(fill(4*last, cat(vec(), basic(""))), vec(outsider.sigKey), basic(""))...))
	pending("pending proposals of external senders", many, size/34, func(i int) []byte {
		return proposeAs(t, many, outsider, cat(u8(2), u32(uint32(last))), psk(i)[1:])
	})
	wide := newGroupSpec(t, SuiteX25519AES128, 1)
	wide.group.Tree = wideTree(t, wide, MaxTreeLeaves*size/(64<<10))
	apply("wide tree", wide, &commitSpec{}, "")
	return all
}

// u16s returns n different code points.
func u16s(n int) []byte {
	list := make([]uint16, n)
	for i := range list {
		list[i] = uint16(i)
	}
	return u16(list...)
}

// smallestPackage returns the smallest KeyPackage.
func smallestPackage(t testing.TB) *keyPackageSpec {
	s := newSpec(t, SuiteX25519AES128)
	s.credential, s.versions, s.suites, s.capExts, s.credentials = basic(""), []uint16{1}, []uint16{1}, nil, []uint16{1}
	s.leafExts, s.packageExts = nil, nil
	return s
}

// wideTree returns a tree of n leaves. All are blank except the group's only member and a last
// leaf.
func wideTree(t testing.TB, g *groupSpec, n int) *Tree {
	t.Helper()
	tree := g.group.Tree.clone()
	tree.resize(n)
	tree.leaves[n-1] = &mustParse(t, newSpec(t, g.suite).build(t)).leaf
	tree.rehash()
	return tree
}
