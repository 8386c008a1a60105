package mls

import "slices"

// Encode returns the group in a form to be kept, from which ParseGroup makes it
// again: its GroupContext, its confirmation_tag, and its ratchet_tree.
func (g *Group) Encode() []byte {
	return append(appendOpaque(g.Context(), g.ConfirmationTag), g.Tree.Encode()...)
}

// ParseGroup reads a group that Encode has written. The group passed Verify or
// Apply then, so that no signature is verified again: only the hash of the tree.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported.
func ParseGroup(data []byte) (*Group, error) {
	var info GroupInfo
	r := newReader("Group", data)
	r.groupContext(&info)
	info.ConfirmationTag = r.opaque("confirmation_tag")
	if r.err != nil {
		return nil, r.finish()
	}
	tree, err := ParseTree(info.CipherSuite, r.s)
	if err != nil {
		return nil, err
	}
	return info.Trust(tree)
}

// Follow checks the GroupInfo of a later epoch of the group, tree included, as
// Verify does, and returns what became of the members, as far as the two trees
// tell: it is for commits that are encrypted. A leaf with another signature key or
// of another account is another member's. Who committed is not known, nor which
// KeyPackages the new members were added with.
//
// Errors: ErrUnsupported, ErrMalformed, ErrBadSignature.
func (g *Group) Follow(info *GroupInfo) (*Change, error) {
	tree, err := info.Tree()
	if err != nil {
		return nil, err
	}
	next, err := info.verify(tree, g.Tree)
	if err != nil {
		return nil, err
	}
	return g.compare(next), nil
}

func (g *Group) compare(next *Group) *Change {
	change := &Change{Next: next}
	for i := range max(len(g.Tree.leaves), len(next.Tree.leaves)) {
		before, was := g.Tree.Member(uint32(i))
		after, is := next.Tree.Member(uint32(i))
		same := was && is && before.DID() == after.DID() && slices.Equal(before.SignatureKey, after.SignatureKey)
		switch {
		case same && !slices.Equal(before.EncryptionKey, after.EncryptionKey):
			change.Updates = append(change.Updates, Update{before, after})
		case same:
		case was && is:
			change.Removes = append(change.Removes, before)
			change.Adds = append(change.Adds, Addition{Member: after})
		case was:
			change.Removes = append(change.Removes, before)
		case is:
			change.Adds = append(change.Adds, Addition{Member: after})
		}
	}
	return change
}
