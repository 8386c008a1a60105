package mls

import (
	"strconv"
	"testing"
)

// BenchmarkCommit judges a commit from scratch, given the stored GroupInfo of
// its epoch, which was verified when it was stored: the target is 5 ms for 100
// members. The tree is as full of blanks as it gets, so the path has a
// ciphertext for every member.
func BenchmarkCommit(b *testing.B) {
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128} {
		for _, n := range []int{100, 1000} {
			g := newGroupSpec(b, suite, n)
			info := g.groupInfo(b, 0)
			for name, c := range map[string]*commitSpec{
				"update": {},
				"add":    {proposals: [][]byte{addOf(b, newSpec(b, suite))}},
				"remove": {proposals: [][]byte{removeOf(1)}},
			} {
				msg := c.build(b, g)
				b.Run(name+"/"+strconv.Itoa(n)+"/"+suite.String(), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						info := must(ParseGroupInfo(info))(b)
						group := must(info.Trust(must(info.Tree())(b)))(b)
						must(group.Apply(must(ParseCommit(msg))(b)))(b)
					}
				})
			}
		}
	}
}

// BenchmarkVerifyGroupInfo verifies a GroupInfo and all of its tree.
func BenchmarkVerifyGroupInfo(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			data := newGroupSpec(b, SuiteX25519AES128, n).groupInfo(b, 1)
			b.ReportAllocs()
			for b.Loop() {
				info := must(ParseGroupInfo(data))(b)
				must(info.Verify(must(info.Tree())(b)))(b)
			}
		})
	}
}

// BenchmarkVerifyUnmerged verifies, signatures apart, a tree whose parents have
// as many unmerged leaves as members can give them: the most that original tree
// hashes cost.
func BenchmarkVerifyUnmerged(b *testing.B) {
	g := newGroupSpec(b, SuiteX25519AES128, 512)
	for i := uint32(0); i < 512; i += 2 { // parents everywhere
		g.group = must(g.group.Apply(must(ParseCommit((&commitSpec{sender: i}).build(b, g)))(b)))(b).Next
	}
	tree := g.group.Tree.clone()
	for i := uint32(1); i < 512; i += 2 { // as if they had been blank at the time
		for x := leafNodeIndex(i).parent(); ; x = x.parent() {
			if p := tree.parents[x/2]; p != nil && !contains(p.unmerged, i) {
				unmerged := append(append([]uint32(nil), p.unmerged...), i)
				tree.parents[x/2] = &parentNode{p.encryptionKey, p.parentHash, unmerged}
			}
			if x == tree.root() {
				break
			}
		}
	}
	tree.rehash()
	b.ReportAllocs()
	for b.Loop() {
		for i, p := range tree.parents {
			if p != nil {
				x := nodeIndex(2*i + 1)
				tree.parentHashBelow(x.left(), p)
				tree.parentHash(x, x.left())
				tree.parentHash(x, x.right())
			}
		}
	}
}

// hostileGroups returns 64 KiB inputs against trees and commits, signatures
// aside: these are verified in proportion to what a member of the group signed.
func hostileGroups(b *testing.B) map[string]func() error {
	const size = 64 << 10
	g := newGroupSpec(b, SuiteX25519AES128, 5)
	commit := func(c *commitSpec) func() error {
		msg := c.build(b, g)
		return func() error {
			parsed, err := ParseCommit(msg)
			if err == nil {
				_, err = g.group.Apply(parsed)
			}
			return err
		}
	}
	tree := func(data []byte) func() error {
		return func() error {
			t, err := ParseTree(SuiteX25519AES128, data)
			if err == nil {
				err = t.Verify([]byte(testGroup))
			}
			return err
		}
	}
	repeat := func(n int, unit func(int) []byte) (all [][]byte) {
		for i := range n {
			all = append(all, unit(i))
		}
		return all
	}
	leaf := func(i int) []byte { // no valid signature: the checks before that one
		return cat(u8(1), u8(1), vec(make([]byte, 28), u32(uint32(i))), vec(make([]byte, 28), u32(uint32(i))),
			basic(""), vec(), vec(), vec(), vec(), vec(u16(1)), u8(2), vec(), vec())
	}
	blanks := repeat(2*MaxTreeLeaves-2, func(int) []byte { return u8(0) })
	leaves := repeat(size/90, func(i int) []byte { return cat(leaf(i), u8(0)) })
	// Parents all the way up, with every leaf but the first of each unmerged.
	n := 512
	full := repeat(2*n-1, func(i int) []byte {
		x := nodeIndex(i)
		if x.isLeaf() {
			return leaf(i)
		}
		var unmerged []byte
		for first, end := x.leaves(); first+1 < end; end-- {
			unmerged = cat(u32(end-1), unmerged)
		}
		return cat(u8(1), u8(2), vec(make([]byte, 28), u32(uint32(i))), vec(make([]byte, 32)), vec(unmerged))
	})
	return map[string]func() error{
		"blank tree":         tree(vec(cat(blanks...), leaf(1))),
		"leaves":             tree(vec(cat(leaves...), leaf(size))),
		"unmerged":           tree(vec(full...)),
		"removes of a blank": commit(&commitSpec{noPath: true, proposals: repeat(size/7, func(int) []byte { return removeOf(6) })}),
		"psks": commit(&commitSpec{noPath: true, proposals: append(repeat(size/50, func(i int) []byte {
			return pskProposal(32, strconv.Itoa(i))
		}), removeOf(1))}),
		"references": commit(&commitSpec{noPath: true, proposals: repeat(size/34, func(int) []byte {
			return cat(u8(2), vec(make([]byte, 32)))
		})}),
		"ciphertexts": commit(&commitSpec{secrets: func(s [][]byte) [][]byte {
			return repeat(size/3/len(s[0]), func(int) []byte { return s[0] })
		}}),
	}
}

// BenchmarkHostileGroup: the target is 5 ms for each.
func BenchmarkHostileGroup(b *testing.B) {
	for name, judge := range hostileGroups(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if judge() == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}
