package mls

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

// MaxTreeLeaves is the largest number of leaves in a ratchet tree, including blank leaves. The
// limit guards against trees of blank nodes: a blank node has only one byte, but must be hashed.
// Real groups do not reach the limit, because so many members do not fit into a GroupInfo.
const MaxTreeLeaves = 8192

// Tree is the public ratchet tree of a group at one epoch (RFC 9420 §7). It is immutable and safe
// for concurrent use. It aliases the bytes that it was parsed from.
type Tree struct {
	suite   CipherSuite
	leaves  []*leafNode   // by leaf index, nil if blank; len is a power of two
	parents []*parentNode // by node index / 2, nil if blank; one fewer than leaves
	hashes  []byte        // tree hash of each node, by node index (§7.8)
}

// parentNode is a ParentNode (RFC 9420 §7.1). It is immutable, because trees share it.
type parentNode struct {
	encryptionKey []byte
	parentHash    []byte
	unmerged      []uint32 // strictly increasing
}

// Member is the owner of a leaf: one device of a person. Byte slices alias the bytes that the leaf
// was parsed from.
type Member struct {
	Leaf           uint32
	CredentialType CredentialType
	Identity       string // identity of a basic credential, "" otherwise; not checked to be UTF-8
	SignatureKey   []byte // identifies the device
	EncryptionKey  []byte // changes whenever the leaf is updated
}

// DID returns the account that the member claims: the identity of a basic credential, without "#"
// and the device name that may follow. It returns "" for any other credential.
func (m Member) DID() string {
	did, _, _ := strings.Cut(m.Identity, "#")
	return did
}

// DeviceID returns the id of the member's device, as KeyPackage.DeviceID does.
func (m Member) DeviceID() string { return deviceID(m.SignatureKey) }

// ParseTree parses the data of a ratchet_tree extension (RFC 9420 §12.4.3.3) and computes the tree
// hashes. It checks the structure of the encoding only. Verify checks the tree.
//
// Errors: ErrMalformed, ErrTooLarge, ErrUnsupported (an unknown suite; more than MaxTreeLeaves).
func ParseTree(suite CipherSuite, data []byte) (*Tree, error) {
	if err := checkSize("ratchet_tree", data, suite.Limits().GroupInfo); err != nil {
		return nil, err
	}
	if suite.hashSize() == 0 {
		return nil, refuseTree(ErrUnsupported, "cipher_suite", "7.8", suite.String())
	}
	r := newReader("ratchet_tree", data)
	t := r.ratchetTree(suite)
	if err := r.finish(); err != nil {
		return nil, err
	}
	t.rehash()
	return t, nil
}

// ratchetTree reads the nodes of a tree. It adds blank nodes at the end until the tree is full.
func (r *reader) ratchetTree(suite CipherSuite) *Tree {
	r.in = place{"ratchet_tree", "12.4.3.3"}
	t := &Tree{suite: suite}
	blank := true
	r.vector("nodes", func(r *reader) {
		blank = !r.optional("node")
		var kind uint8
		if !blank {
			kind = r.u8("node_type")
		}
		switch atLeaf := len(t.leaves) == len(t.parents); {
		case r.err != nil:
		case blank && atLeaf:
			t.leaves = append(t.leaves, nil)
		case blank:
			t.parents = append(t.parents, nil)
		case kind == 1 && atLeaf:
			leaf := r.leafNode()
			t.leaves = append(t.leaves, &leaf)
		case kind == 2 && !atLeaf:
			parent := r.parentNode()
			t.parents = append(t.parents, &parent)
		default:
			r.malformed("node_type", "not the kind of node that belongs there")
		}
		if len(t.leaves) > MaxTreeLeaves {
			r.fail(ErrUnsupported, "nodes", "more than "+strconv.Itoa(MaxTreeLeaves)+" leaves")
		}
	})
	if r.err == nil && blank {
		r.malformed("nodes", "the last node is blank")
	}
	if r.err == nil && len(t.parents) == len(t.leaves) && len(t.leaves) == MaxTreeLeaves {
		r.fail(ErrUnsupported, "nodes", "more than "+strconv.Itoa(MaxTreeLeaves)+" leaves")
	}
	n := 1
	for n < len(t.leaves) || n-1 < len(t.parents) {
		n *= 2
	}
	t.resize(n)
	return t
}

// resize makes n the number of leaves. n must be a power of two. New leaves are blank.
func (t *Tree) resize(n int) {
	if n < len(t.leaves) {
		t.leaves, t.parents = t.leaves[:n:n], t.parents[:n-1:n-1]
		return
	}
	t.leaves = append(t.leaves, make([]*leafNode, n-len(t.leaves))...)
	t.parents = append(t.parents, make([]*parentNode, n-1-len(t.parents))...)
}

// clone returns a copy that may be changed until rehash is called.
func (t *Tree) clone() *Tree {
	return &Tree{suite: t.suite, leaves: slices.Clone(t.leaves), parents: slices.Clone(t.parents)}
}

// Encode returns the tree as the data of a ratchet_tree extension, without the blank nodes at its
// end.
func (t *Tree) Encode() []byte {
	var nodes []byte
	end := 0
	for x := range len(t.leaves) + len(t.parents) {
		leaf, parent := t.at(nodeIndex(x))
		switch {
		case leaf != nil:
			nodes = append(append(nodes, 1, 1), leaf.raw...)
		case parent != nil:
			nodes = parent.append(append(nodes, 1, 2))
		default:
			nodes = append(nodes, 0)
			continue
		}
		end = len(nodes)
	}
	return appendOpaque(nil, nodes[:end])
}

// at returns the node at x. Both results are nil if the node is blank.
func (t *Tree) at(x nodeIndex) (*leafNode, *parentNode) {
	if x.isLeaf() {
		return t.leaves[x/2], nil
	}
	return nil, t.parents[x/2]
}

func (t *Tree) root() nodeIndex { return rootOf(len(t.leaves)) }

// leaf returns the leaf with index i, or nil if the leaf is blank or outside the tree.
func (t *Tree) leaf(i uint32) *leafNode {
	if int64(i) >= int64(len(t.leaves)) {
		return nil
	}
	return t.leaves[i]
}

// Member returns the member at a leaf, and whether there is a member.
func (t *Tree) Member(leaf uint32) (Member, bool) {
	l := t.leaf(leaf)
	if l == nil {
		return Member{}, false
	}
	return l.member(leaf), true
}

// Members yields the members in the order of their leaves.
func (t *Tree) Members() iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for i, l := range t.leaves {
			if l != nil && !yield(l.member(uint32(i))) {
				return
			}
		}
	}
}

func (l *leafNode) member(leaf uint32) Member {
	return Member{
		Leaf:           leaf,
		CredentialType: l.credentialType,
		Identity:       string(l.identity),
		SignatureKey:   l.signatureKey,
		EncryptionKey:  l.encryptionKey,
	}
}

// refuseTree returns the error for a tree.
func refuseTree(kind error, field, section, reason string) error {
	return &ParseError{Object: "ratchet_tree", Field: field, Section: section, Reason: reason, Kind: kind}
}
