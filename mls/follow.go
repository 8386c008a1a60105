package mls

import "bytes"

// Follow verifies the GroupInfo of a later epoch of the group, with its tree, as Verify does. It
// returns the difference between the two trees. Callers use it for encrypted commits, so the change
// lacks the committer, the authors of proposals, and the KeyPackages of new members.
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

// NewDevices returns how many leaves the tree of info has that g does not have in the same place.
// Follow verifies one signature for each such leaf.
//
// Errors: ErrUnsupported, ErrMalformed.
func (g *Group) NewDevices(info *GroupInfo) (n int, err error) {
	tree, err := info.Tree()
	if err != nil {
		return 0, err
	}
	for i, l := range tree.leaves {
		if l == nil {
			continue
		}
		if known := g.Tree.leaf(uint32(i)); known == nil || !bytes.Equal(known.raw, l.raw) {
			n++
		}
	}
	return n, nil
}

// compare returns the difference between the trees of g and next.
func (g *Group) compare(next *Group) *Change {
	change := &Change{Next: next, Context: !bytes.Equal(g.ContextExtensions, next.ContextExtensions)}
	for i := range max(len(g.Tree.leaves), len(next.Tree.leaves)) {
		was, is := g.Tree.leaf(uint32(i)), next.Tree.leaf(uint32(i))
		if was != nil && is != nil && bytes.Equal(was.raw, is.raw) {
			continue
		}
		before, _ := g.Tree.Member(uint32(i))
		after, _ := next.Tree.Member(uint32(i))
		// A leaf from a KeyPackage is a new member, even if another member's leaf was in its place.
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
