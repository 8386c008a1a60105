package mls

import (
	"bytes"
	"slices"
)

// parentHash returns the parent hash of the parent p, whose child copath is the copath child (RFC
// 9420 §7.9).
func (t *Tree) parentHash(p, copath nodeIndex) []byte {
	node := t.parents[p/2]
	h := t.newTreeHasher()
	sibling := h.hashWithout(t, copath, within(node.unmerged, copath))
	h.buf = appendOpaque(h.buf[:0], node.encryptionKey)
	h.buf = appendOpaque(h.buf, node.parentHash)
	h.buf = appendOpaque(h.buf, sibling)
	out := make([]byte, t.suite.hashSize())
	h.sum(out)
	return out
}

// checkParentHashes checks that a member set every parent: exactly one node below the parent has
// the matching parent_hash (RFC 9420 §7.9.2). Because this holds for all parents, every chain ends
// in a leaf, whose signature covers the chain.
func (t *Tree) checkParentHashes() error {
	for i, p := range t.parents {
		if p == nil {
			continue
		}
		x := nodeIndex(2*i + 1)
		matching := 0
		for _, child := range []nodeIndex{x.left(), x.right()} {
			if have := t.parentHashBelow(child, p); have != nil && bytes.Equal(have, t.parentHash(x, child.sibling())) {
				matching++
			}
		}
		if matching != 1 {
			return refuseTree(ErrMalformed, "ParentNode.parent_hash", "7.9.2", "a parent that no member's leaf vouches for")
		}
	}
	return nil
}

// parentHashBelow returns the parent_hash of the node D, the only node below p's child c that can
// match p. It returns nil if there is no such node. D is what remains of c's resolution without p's
// unmerged leaves below c. All these leaves must be in the resolution. The cost for all parents is
// linear in the number of nodes and the length of the unmerged_leaves lists, because only the
// nearest parent above a blank node visits the blank node.
func (t *Tree) parentHashBelow(c nodeIndex, p *parentNode) []byte {
	unmerged := within(p.unmerged, c)
	found, merged := 0, 0
	var hash []byte
	t.resolve(c, func(x nodeIndex) bool {
		leaf, parent := t.at(x)
		switch {
		case leaf == nil:
			merged++
			hash = parent.parentHash
		case contains(unmerged, x.leaf()):
			found++
		default:
			merged++
			hash = leaf.parentHash // nil unless a commit set it
		}
		return merged < 2
	})
	if merged != 1 || found != len(unmerged) || len(hash) == 0 {
		return nil
	}
	return hash
}

// resolve yields the resolution of x (RFC 9420 §4.1.1) in order, until yield returns false. It
// returns the last result of yield, or true if it yields nothing.
func (t *Tree) resolve(x nodeIndex, yield func(nodeIndex) bool) bool {
	leaf, parent := t.at(x)
	switch {
	case leaf != nil:
		return yield(x)
	case parent != nil:
		if !yield(x) {
			return false
		}
		for _, l := range parent.unmerged {
			if !yield(leafNodeIndex(l)) {
				return false
			}
		}
		return true
	case x.isLeaf():
		return true
	}
	return t.resolve(x.left(), yield) && t.resolve(x.right(), yield)
}

// within returns the leaves of an increasing list that are below x.
func within(list []uint32, x nodeIndex) []uint32 {
	first, end := x.leaves()
	from, _ := slices.BinarySearch(list, first)
	to, _ := slices.BinarySearch(list, end)
	return list[from:to]
}

// contains reports whether leaf is in an increasing list.
func contains(list []uint32, leaf uint32) bool {
	_, ok := slices.BinarySearch(list, leaf)
	return ok
}

// difference returns list without removed. Both must be increasing.
func difference(list, removed []uint32) []uint32 {
	var left []uint32
	for _, leaf := range list {
		for len(removed) > 0 && removed[0] < leaf {
			removed = removed[1:]
		}
		if len(removed) == 0 || removed[0] != leaf {
			left = append(left, leaf)
		}
	}
	return left
}
