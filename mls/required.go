package mls

// checkRequired checks that every member has the capabilities that the GroupContext's
// required_capabilities extension requires (RFC 9420 §7.3, §11.1). A member need not list default
// extension and proposal types, but must list credential types. The time is linear in the sum of
// the lists, not in their product.
func (t *Tree) checkRequired(context Extensions) error {
	data, ok := context.Get(ExtensionRequiredCapabilities)
	if !ok {
		return nil
	}
	r := newReader("GroupContext", data)
	r.in = place{"RequiredCapabilities", "11.1"}
	extensions, proposals, credentials := r.u16s("extension_types"), r.u16s("proposal_types"), r.u16s("credential_types")
	if err := r.finish(); err != nil {
		return err
	}
	var scratch typeSet
	isDefault := func(v uint16) bool { return ExtensionType(v).isDefault() }
	wantExtensions := scratch.distinct(extensions, isDefault)
	isDefault = func(v uint16) bool {
		return ProposalType(v) >= ProposalAdd && ProposalType(v) <= ProposalGroupContextExtensions
	}
	wantProposals := scratch.distinct(proposals, isDefault)
	wantCredentials := scratch.distinct(credentials, func(uint16) bool { return false })
	for _, l := range t.leaves {
		if l == nil {
			continue
		}
		c := &l.capabilities
		if !scratch.covers(c.extensions, wantExtensions) ||
			!scratch.covers(c.proposals, wantProposals) ||
			!scratch.covers(c.credentials, wantCredentials) {
			return refuseTree(ErrMalformed, "Capabilities", "7.3", "a required capability is not listed")
		}
	}
	return nil
}

// distinct returns the code points of list for which leaveOut is false, each once. s is scratch,
// empty between calls.
func (s *typeSet) distinct(list u16List, leaveOut func(uint16) bool) []uint16 {
	var out []uint16
	for v := range list.all() {
		if !leaveOut(v) && !s.has(ExtensionType(v)) {
			s.add(ExtensionType(v))
			out = append(out, v)
		}
	}
	for _, v := range out {
		s.remove(ExtensionType(v))
	}
	return out
}

// covers reports whether list has every code point of wanted, which must be distinct. It stops at
// the first missing one, so that the time is linear in list. s is scratch, empty between calls.
func (s *typeSet) covers(list u16List, wanted []uint16) bool {
	if len(wanted) == 0 {
		return true
	}
	for v := range list.all() {
		s.add(ExtensionType(v))
	}
	ok := true
	for _, v := range wanted {
		if ok = s.has(ExtensionType(v)); !ok {
			break
		}
	}
	for v := range list.all() {
		s.remove(ExtensionType(v))
	}
	return ok
}
