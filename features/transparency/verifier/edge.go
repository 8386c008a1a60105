package verifier

import (
	"crypto/sha256"
	"errors"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Edge is the right edge of a Merkle tree: the roots of its complete subtrees, the largest first.
// These roots are enough to append leaves and to compute the root.
type Edge struct {
	Size   int64  `json:"size"`
	Hashes []Hash `json:"hashes"`
}

// Append adds a leaf.
func (e *Edge) Append(leaf Hash) {
	for n := e.Size; n&1 == 1; n >>= 1 {
		last := len(e.Hashes) - 1
		leaf, e.Hashes = tlog.NodeHash(e.Hashes[last], leaf), e.Hashes[:last]
	}
	e.Hashes = append(e.Hashes, leaf)
	e.Size++
}

// Root is the root of the tree.
func (e *Edge) Root() Hash {
	n := len(e.Hashes)
	if n == 0 {
		return sha256.Sum256(nil)
	}
	root := e.Hashes[n-1]
	for _, h := range slices.Backward(e.Hashes[:n-1]) {
		root = tlog.NodeHash(h, root)
	}
	return root
}

// Valid reports whether e has the form of an edge.
func (e *Edge) Valid() bool { return e.Size >= 0 && len(e.Hashes) == bits.OnesCount64(uint64(e.Size)) }

var errProof = errors.New("the proof has the wrong number of hashes")

// EdgeOf returns the edge of a tree from the proof that the tree includes its last leaf. The caller
// compares the root of the edge with the root of a head.
func EdgeOf(size int64, last Hash, proof []Hash) (Edge, error) {
	if size < 1 {
		return Edge{}, errProof
	}
	merged := bits.TrailingZeros64(uint64(size))
	if len(proof) != merged+bits.OnesCount64(uint64(size))-1 {
		return Edge{}, errProof
	}
	for _, left := range proof[:merged] {
		last = tlog.NodeHash(left, last)
	}
	hashes := slices.Clone(proof[merged:])
	slices.Reverse(hashes)
	return Edge{size, append(hashes, last)}, nil
}
