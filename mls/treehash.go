package mls

import (
	"encoding/binary"
	"hash"
)

// Hash returns the tree hash of the whole tree (RFC 9420 §7.8), which is the tree_hash in a
// GroupContext.
func (t *Tree) Hash() []byte { return t.hashOf(t.root()) }

// hashOf returns the tree hash of a node. The result must not be modified.
func (t *Tree) hashOf(x nodeIndex) []byte {
	n := t.suite.hashSize()
	i := int(x) * n
	return t.hashes[i : i+n : i+n]
}

// rehash computes the tree hash of every node. The tree must not change after that.
func (t *Tree) rehash() {
	nodes := len(t.leaves) + len(t.parents)
	t.hashes = make([]byte, nodes*t.suite.hashSize())
	h := t.newTreeHasher()
	for x := nodeIndex(0); int(x) < nodes; x += 2 {
		h.leaf(t.hashOf(x), x.leaf(), t.leaves[x/2])
	}
	for width := 2; width <= len(t.leaves); width *= 2 {
		for x := nodeIndex(width - 1); int(x) < nodes; x += nodeIndex(2 * width) {
			h.parent(t.hashOf(x), t.parents[x/2], t.hashOf(x.left()), t.hashOf(x.right()))
		}
	}
}

// rehashPath computes the hashes of a leaf and of all nodes above it again.
func (t *Tree) rehashPath(leaf uint32) {
	h := t.newTreeHasher()
	x := leafNodeIndex(leaf)
	h.leaf(t.hashOf(x), leaf, t.leaves[leaf])
	for x != t.root() {
		x = x.parent()
		h.parent(t.hashOf(x), t.parents[x/2], t.hashOf(x.left()), t.hashOf(x.right()))
	}
}

// hashWithout returns the tree hash that x had before the leaves added were added (§7.9,
// original_sibling_tree_hash). In that state, the leaves are blank and in no unmerged_leaves. added
// must be increasing, and its leaves must be below x. hashWithout visits only the paths from these
// leaves up to x.
func (h *treeHasher) hashWithout(t *Tree, x nodeIndex, added []uint32) []byte {
	if len(added) == 0 {
		return t.hashOf(x)
	}
	out := make([]byte, t.suite.hashSize())
	if x.isLeaf() {
		h.leaf(out, x.leaf(), nil)
		return out
	}
	inLeft, inRight := within(added, x.left()), within(added, x.right())
	left, right := h.hashWithout(t, x.left(), inLeft), h.hashWithout(t, x.right(), inRight)
	p := t.parents[x/2]
	if p != nil {
		p = &parentNode{p.encryptionKey, p.parentHash, difference(p.unmerged, added)}
	}
	h.parent(out, p, left, right)
	return out
}

// treeHasher computes TreeHashInput hashes with one buffer.
type treeHasher struct {
	h   hash.Hash
	buf []byte
}

func (t *Tree) newTreeHasher() *treeHasher { return &treeHasher{h: t.suite.newHash()} }

// leaf writes the hash of a LeafNodeHashInput to out. l is nil for a blank leaf.
func (h *treeHasher) leaf(out []byte, index uint32, l *leafNode) {
	h.buf = append(h.buf[:0], 1)
	h.buf = binary.BigEndian.AppendUint32(h.buf, index)
	if l == nil {
		h.buf = append(h.buf, 0)
	} else {
		h.buf = append(append(h.buf, 1), l.raw...)
	}
	h.sum(out)
}

// parent writes the hash of a ParentNodeHashInput to out. p is nil for a blank parent.
func (h *treeHasher) parent(out []byte, p *parentNode, left, right []byte) {
	h.buf = append(h.buf[:0], 2)
	if p == nil {
		h.buf = append(h.buf, 0)
	} else {
		h.buf = p.append(append(h.buf, 1))
	}
	h.buf = appendOpaque(h.buf, left)
	h.buf = appendOpaque(h.buf, right)
	h.sum(out)
}

func (h *treeHasher) sum(out []byte) {
	h.h.Reset()
	h.h.Write(h.buf)
	h.h.Sum(out[:0])
}

// append appends the encoding of a ParentNode (§7.1).
func (p *parentNode) append(b []byte) []byte {
	b = appendOpaque(b, p.encryptionKey)
	b = appendOpaque(b, p.parentHash)
	b = appendVarint(b, 4*len(p.unmerged))
	for _, leaf := range p.unmerged {
		b = binary.BigEndian.AppendUint32(b, leaf)
	}
	return b
}

// appendOpaque appends v as opaque<V> (§2.1.2).
func appendOpaque(b, v []byte) []byte { return append(appendVarint(b, len(v)), v...) }
