package mls

import (
	"strconv"
	"testing"
)

// hostileVerify verifies parsed objects. An attacker without a key does not reach the checks after
// a signature. An attacker with a key needs bytes for each signature.
func hostileVerify(t testing.TB, size int) (all []hostileInput) {
	verify := func(name string, suite CipherSuite, data []byte, field string) {
		tree := must(ParseTree(suite, data))(t)
		all = append(all, hostileInput{"Tree.Verify/" + name, func() error { return tree.Verify([]byte(testGroup)) }, field})
	}
	verify("leaves, unsigned", SuiteX25519AES128, unsignedLeaves(size), "LeafNode.signature")
	verify("unmerged leaves", SuiteX25519AES128, unmergedTree(size), "LeafNode.signature_key")
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128} {
		verify("signatures, suite "+strconv.Itoa(int(suite)), suite, signedLeaves(t, suite, size), "")
	}
	spec := newSpec(t, SuiteX25519AES128)
	spec.leafExts = cat(manyExts(600), ext(2000))
	for i := range 900 {
		spec.capExts = append(spec.capExts, uint16(0x1000+599-i%600))
	}
	unlisted := mustParse(t, spec.build(t))
	check := func() error { return unlisted.Check(testNow) }
	return append(all, hostileInput{"KeyPackage.Check/capabilities", check, "Capabilities.extensions"})
}

// bareLeaf returns the smallest leaf node whose signature is checked. Each i gives another
// encryption key.
func bareLeaf(i int, signatureKey, parentHash []byte) []byte {
	leaf := cat(vec(make([]byte, 28), u32(uint32(i))), vec(signatureKey), basic(""), vec(), vec(), vec(), vec(),
		vec(u16(1)))
	if parentHash == nil {
		return cat(u8(1), u8(1), leaf, u8(2), vec(), vec())
	}
	return cat(u8(1), u8(1), leaf, u8(3), vec(parentHash), vec(), vec())
}

// unsignedLeaves returns a tree of leaves without parents.
func unsignedLeaves(size int) []byte {
	var nodes []byte
	for i := 0; len(nodes) < size; i++ {
		nodes = cat(nodes, bareLeaf(i, cat(make([]byte, 28), u32(uint32(i))), nil), u8(0))
	}
	return vec(nodes[:len(nodes)-1])
}

// signedLeaves returns a tree of leaves without parents. Each leaf has a valid signature and is as
// small as possible.
func signedLeaves(t testing.TB, suite CipherSuite, size int) []byte {
	t.Helper()
	var nodes []byte
	for i := uint32(0); len(nodes) < size; i++ {
		s := newSpec(t, suite)
		s.credential, s.versions, s.suites, s.capExts, s.credentials = basic(""), nil, nil, nil, []uint16{1}
		s.source, s.leafExts = 2, nil
		nodes = cat(nodes, u8(1), u8(1), s.leafIn(t, []byte(testGroup), i, nil), u8(0))
	}
	return vec(nodes[:len(nodes)-1])
}

// unmergedTree returns a tree in which original tree hashes (RFC 9420 §7.9) cost the most. It is
// wide and nearly blank. It has parents near the root only, with valid parent hashes, and nearly
// every leaf is unmerged in all of them. It needs no signature: signatures are checked after the
// parents.
func unmergedTree(size int) []byte {
	const apart, below = 16, 128 // leaves, and leaves below the lowest parents
	n := MaxTreeLeaves * size / (64 << 10)
	var nodes []byte
	for x := range 2*n - 2 {
		if x%(2*apart) == 0 {
			nodes = append(nodes, bareLeaf(x, u32(uint32(x)), nil)...)
		} else {
			nodes = append(nodes, 0)
		}
	}
	data := vec(nodes, bareLeaf(1, u32(1), nil))
	r := newReader("test", data)
	t := r.ratchetTree(SuiteX25519AES128)
	for i := range t.parents {
		x := nodeIndex(2*i + 1)
		if first, end := x.leaves(); end-first >= below {
			p := &parentNode{encryptionKey: cat(make([]byte, 28), u32(uint32(x))), parentHash: make([]byte, 32)}
			for l := first; l < end; l += apart {
				if l%below != 0 {
					p.unmerged = append(p.unmerged, l)
				}
			}
			t.parents[i] = p
		}
	}
	t.rehash()
	t.setParentHashes(t.root(), make([]byte, 32), apart)
	return t.Encode()
}

// setParentHashes sets the parent hash of x, or of the first leaf below x if x is blank. x is a
// leaf or a parent. It then sets those of the rest of the subtree.
func (t *Tree) setParentHashes(x nodeIndex, hash []byte, apart uint32) {
	p := t.parents[x/2]
	first, end := x.leaves()
	if p == nil {
		r := newReader("test", bareLeaf(int(2*first), t.leaves[first].signatureKey, hash)[2:])
		leaf := r.leafNode()
		t.leaves[first] = &leaf
		t.rehashPath(first)
		return
	}
	t.parents[x/2] = &parentNode{p.encryptionKey, hash, p.unmerged}
	if t.parents[x.right()/2] != nil {
		t.setParentHashes(x.right(), make([]byte, 32), apart)
	}
	for l := first; l < end; l += apart {
		t.rehashPath(l)
	}
	t.setParentHashes(x.left(), t.parentHash(x, x.right()), apart)
}
