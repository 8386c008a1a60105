package mls

import "strconv"

// checkContext checks that every member supports the extensions of the GroupContext (RFC 9420
// §13.4). It also checks that every member has the capabilities that the required_capabilities
// extension demands (§7.3, §11.1). A member need not list default extension and proposal types, but
// must list credential types. The time is linear in the sum of the lists, not in their product.
func (t *Tree) checkContext(context Extensions) error {
	required, err := requiredOf(context)
	if err != nil {
		return err
	}
	var types u16List
	for e := range context.All() {
		types = append(types, byte(e>>8), byte(e))
	}
	var scratch typeSet
	isDefault := func(v uint16) bool { return ExtensionType(v).isDefault() }
	inUse := scratch.distinct(types, isDefault)
	wantExtensions := scratch.distinct(required.extensions, isDefault)
	isDefault = func(v uint16) bool { return ProposalType(v).isDefault() }
	wantProposals := scratch.distinct(required.proposals, isDefault)
	wantCredentials := scratch.distinct(required.credentials, func(uint16) bool { return false })
	for i, l := range t.leaves {
		if l == nil {
			continue
		}
		c := &l.capabilities
		if !scratch.covers(c.extensions, inUse) {
			return refuseTree(ErrMalformed, "Capabilities.extensions", "13.4",
				"leaf "+strconv.Itoa(i)+" does not list an extension of the GroupContext")
		}
		if !scratch.covers(c.extensions, wantExtensions) ||
			!scratch.covers(c.proposals, wantProposals) ||
			!scratch.covers(c.credentials, wantCredentials) {
			return refuseTree(ErrMalformed, "Capabilities", "7.3",
				"leaf "+strconv.Itoa(i)+" does not list a required capability")
		}
	}
	return nil
}

// requiredOf returns the capabilities that the required_capabilities extension demands (§11.1).
// They are empty if there is no such extension.
func requiredOf(context Extensions) (c capabilities, err error) {
	data, ok := context.Get(ExtensionRequiredCapabilities)
	if !ok {
		return c, nil
	}
	r := newReader("GroupContext", data)
	r.in = place{"RequiredCapabilities", "11.1"}
	c.extensions, c.proposals, c.credentials = r.u16s("extension_types"), r.u16s("proposal_types"),
		r.u16s("credential_types")
	return c, r.finish()
}

// distinct returns the code points of list for which leaveOut is false, without repetitions. s is
// scratch, and is empty between calls.
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
// the first missing code point, so that the time is linear in list. s is scratch, and is empty
// between calls.
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
