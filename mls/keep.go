package mls

import "bytes"

// Encode returns the group in a form to be kept, from which ParseGroup makes it
// again: its GroupContext, its confirmation_tag, and its ratchet_tree. ParseGroup
// takes no more than MaxGroupInfoSize bytes, while a tree may grow.
func (g *Group) Encode() []byte {
	return append(appendOpaque(g.Context(), g.ConfirmationTag), g.Tree.Encode()...)
}

// ParseGroup reads a group that Encode has written. The group passed Verify or
// Apply then, so that no signature is verified again: only the hash of the tree.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported.
func ParseGroup(data []byte) (*Group, error) {
	if err := checkSize("Group", data, MaxGroupInfoSize); err != nil {
		return nil, err
	}
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
// tell: it is for commits that are encrypted. Who committed is not known, nor who
// proposed what, nor which KeyPackages the new members were added with.
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
		was, is := g.Tree.leaf(uint32(i)), next.Tree.leaf(uint32(i))
		if was != nil && is != nil && bytes.Equal(was.raw, is.raw) {
			continue
		}
		before, _ := g.Tree.Member(uint32(i))
		after, _ := next.Tree.Member(uint32(i))
		// A leaf that has just come from a KeyPackage was added, whatever was there.
		if was != nil && is != nil && before.DID() == after.DID() && is.source != leafFromKeyPackage {
			change.Updates = append(change.Updates, Update{before, after})
			continue
		}
		if was != nil {
			change.Removes = append(change.Removes, Removal{Member: before})
		}
		if is != nil {
			change.Adds = append(change.Adds, Addition{Member: after})
		}
	}
	return change
}
