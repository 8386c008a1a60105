package mls

// Encode returns the group in a form for storage: its GroupContext, its confirmation_tag, and its
// ratchet_tree. ParseGroup parses this form. A tree can grow until it exceeds the suite's limit on
// a GroupInfo. ParseGroup refuses such a tree.
func (g *Group) Encode() []byte {
	return append(appendOpaque(g.Context(), g.ConfirmationTag), g.Tree.Encode()...)
}

// ParseGroup parses a group that Encode returned. Such a group had passed Verify or Apply, so
// ParseGroup checks the hash of the tree, but no signature.
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
