package mls

import "math/bits"

// Node indices of RFC 9420 Appendix C. Leaf i is node 2i, and a parent is between its two subtrees.
// Trees are full: a tree of n leaves, n a power of two, has 2n-1 nodes and its root at n-1.

// nodeIndex is a place in a ratchet tree, leaf or parent.
type nodeIndex uint32

// leafNodeIndex returns the node of a leaf.
func leafNodeIndex(leaf uint32) nodeIndex { return nodeIndex(leaf) * 2 }

// level returns the height of x above the leaves, 0 for a leaf.
func (x nodeIndex) level() int { return bits.TrailingZeros32(^uint32(x)) }

func (x nodeIndex) isLeaf() bool { return x&1 == 0 }

// leaf returns the leaf index of a leaf.
func (x nodeIndex) leaf() uint32 { return uint32(x / 2) }

// left and right return the children of a parent.
func (x nodeIndex) left() nodeIndex  { return x ^ 1<<(x.level()-1) }
func (x nodeIndex) right() nodeIndex { return x ^ 3<<(x.level()-1) }

// parent returns the node above x. x must not be the root.
func (x nodeIndex) parent() nodeIndex {
	k := x.level()
	return (x | 1<<k) &^ (2 << k)
}

// sibling returns the other child of x's parent. x must not be the root.
func (x nodeIndex) sibling() nodeIndex {
	p := x.parent()
	if x < p {
		return p.right()
	}
	return p.left()
}

// leaves returns the range [first, end) of the leaf indices below x.
func (x nodeIndex) leaves() (first, end uint32) {
	k := x.level()
	first = (uint32(x) - (1<<k - 1)) / 2
	return first, first + 1<<k
}

// rootOf returns the root of a tree of n leaves. n must be a power of two.
func rootOf(n int) nodeIndex { return nodeIndex(n - 1) }
