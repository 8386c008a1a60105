package mls

import (
	"bytes"
	"slices"
)

// Verify makes every check of a group's tree that needs no GroupContext (RFC 9420 §12.4.3.1, §7.3):
//
//   - keys have the suite's form, and no encryption key or signature key occurs twice;
//   - unmerged_leaves are consistent;
//   - capabilities list each leaf's own extensions, and every credential type in use;
//   - the parent hash of every parent matches one node below it;
//   - the signature of every leaf verifies.
//
// It does not check lifetimes: a member may stay longer than the lifetime of its KeyPackage.
//
// The cost is n log n for n nodes, plus one signature for each member. Signatures are verified
// last.
//
// Errors: ErrUnsupported (a suite that the RFC does not define), ErrMalformed,
// ErrBadSignature.
func (t *Tree) Verify(groupID []byte) error { return t.verify(groupID, &Tree{}) }

// verify is Verify, but it does not verify signatures of leaves that known has in the same place.
// known must be a verified tree of the same group.
func (t *Tree) verify(groupID []byte, known *Tree) error {
	if !t.suite.Supported() {
		return refuseTree(ErrUnsupported, "cipher_suite", "17.1", t.suite.String())
	}
	for _, step := range []func() error{
		t.checkKeys, t.checkUnmerged, t.checkCapabilities, t.checkParentHashes,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for i, l := range t.leaves {
		if l == nil {
			continue
		}
		if k := known.leaf(uint32(i)); k != nil && bytes.Equal(k.raw, l.raw) {
			continue
		}
		if err := t.suite.verifyLeaf(l, groupID, uint32(i)); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys checks the form of every key, and that no key occurs twice.
func (t *Tree) checkKeys() error {
	encryption := make(map[string]struct{}, len(t.leaves))
	signature := make(map[string]struct{}, len(t.leaves))
	for _, l := range t.leaves {
		switch {
		case l == nil:
			continue
		case !t.suite.validHPKEKey(l.encryptionKey):
			return refuseTree(ErrMalformed, "LeafNode.encryption_key", "5.1.1", t.suite.wrongHPKEKey(l.encryptionKey))
		case !addKey(encryption, l.encryptionKey):
			return refuseTree(ErrMalformed, "LeafNode.encryption_key", "7.3", "one key twice")
		case !addKey(signature, l.signatureKey):
			return refuseTree(ErrMalformed, "LeafNode.signature_key", "7.3", "one key twice")
		}
	}
	for _, p := range t.parents {
		switch {
		case p == nil:
			continue
		case !t.suite.validHPKEKey(p.encryptionKey):
			return refuseTree(ErrMalformed, "ParentNode.encryption_key", "5.1.1", t.suite.wrongHPKEKey(p.encryptionKey))
		case !addKey(encryption, p.encryptionKey):
			return refuseTree(ErrMalformed, "ParentNode.encryption_key", "12.4.3.1", "one key twice")
		}
	}
	return nil
}

// addKey adds key to a set and reports whether it was new.
func addKey(set map[string]struct{}, key []byte) bool {
	if _, have := set[string(key)]; have {
		return false
	}
	set[string(key)] = struct{}{}
	return true
}

// checkUnmerged checks every unmerged_leaves list. The list is increasing, and its leaves are
// members below the parent. All parents between the parent and such a leaf list the leaf too (§7.1,
// §12.4.3.1).
func (t *Tree) checkUnmerged() error {
	refuse := func(section, reason string) error {
		return refuseTree(ErrMalformed, "ParentNode.unmerged_leaves", section, reason)
	}
	for i, p := range t.parents {
		if p == nil {
			continue
		}
		first, end := nodeIndex(2*i + 1).leaves()
		for j, l := range p.unmerged {
			switch {
			case j > 0 && l <= p.unmerged[j-1]:
				return refuse("7.1", "not in increasing order")
			case l < first || l >= end:
				return refuse("12.4.3.1", "a leaf that is not below the node")
			case t.leaves[l] == nil:
				return refuse("12.4.3.1", "a blank leaf")
			}
		}
	}
	for i, l := range t.leaves {
		if l == nil {
			continue
		}
		merged := false
		for x := leafNodeIndex(uint32(i)); x != t.root(); {
			x = x.parent()
			p := t.parents[x/2]
			switch {
			case p == nil:
			case !contains(p.unmerged, uint32(i)):
				merged = true
			case merged:
				return refuse("12.4.3.1", "a leaf that is merged further down")
			}
		}
	}
	return nil
}

// checkCapabilities checks that each leaf lists its own extensions, and that
// every member supports every credential type in use (§7.3).
func (t *Tree) checkCapabilities() error {
	var used []CredentialType // at most two: only two types parse
	for _, l := range t.leaves {
		if l != nil && !slices.Contains(used, l.credentialType) {
			used = append(used, l.credentialType)
		}
	}
	var listed typeSet
	for _, l := range t.leaves {
		if l == nil {
			continue
		}
		for _, c := range used {
			if !l.capabilities.credentials.contains(uint16(c)) {
				return refuseTree(ErrMalformed, "Capabilities.credentials", "7.3", "a credential type in use is not listed")
			}
		}
		if !l.capabilities.listExtensions(l.extensions, &listed) {
			return refuseTree(ErrMalformed, "Capabilities.extensions", "7.3", "an extension of the leaf is not listed")
		}
	}
	return nil
}

// listExtensions reports whether the capabilities list every type of a leaf's extensions, except
// default types. The scratch set is empty between calls.
func (c *capabilities) listExtensions(list Extensions, scratch *typeSet) bool {
	if len(list) == 0 {
		return true
	}
	for t := range c.extensions.all() {
		scratch.add(ExtensionType(t))
	}
	ok := true
	for t := range list.All() {
		ok = ok && (t.isDefault() || scratch.has(t))
	}
	for t := range c.extensions.all() {
		scratch.remove(ExtensionType(t))
	}
	return ok
}
