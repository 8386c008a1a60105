package mls

import (
	"bytes"
	"strconv"
)

// checkProposals checks the list of proposals (§12.2), and whether the commit has a path if it
// needs one (§12.4).
func (a *applier) checkProposals() error {
	refuse := func(reason string) error {
		return refuseCommit(ErrMalformed, "Commit.proposals", "12.2", reason)
	}
	n := map[ProposalType]int{}
	for _, p := range a.proposals {
		n[p.Type]++
	}
	all := len(a.proposals)
	switch {
	case a.change.External && n[ProposalExternalInit] != 1:
		return refuse("an external commit without exactly one external_init")
	case a.change.External && n[ProposalRemove] > 1:
		return refuse("an external commit with two removes")
	case a.change.External && all != 1+n[ProposalRemove]+n[ProposalPSK]+n[ProposalSelfRemove]:
		return refuse("an external commit with a proposal of another type")
	case !a.change.External && n[ProposalExternalInit] > 0:
		return refuse("external_init in a commit that is not external")
	case n[ProposalGroupContextExtensions] > 1:
		return refuse("two group_context_extensions")
	case n[ProposalReInit] > 0 && all > 1:
		return refuse("reinit beside another proposal")
	}
	optional := all > 0 && all == n[ProposalAdd]+n[ProposalPSK]+n[ProposalReInit]
	if !optional && !a.c.HasPath {
		return refuseCommit(ErrMalformed, "Commit.path", "12.4", "missing")
	}
	touched := make(map[uint32]struct{})
	psks := make(map[string]struct{})
	for _, p := range a.proposals {
		if err := a.checkProposal(p, touched, psks); err != nil {
			return err
		}
	}
	if n[ProposalSelfRemove] > 0 {
		return a.checkSupport(ProposalSelfRemove)
	}
	return nil
}

// checkSupport checks that every member lists the proposal type t, which is not a default type
// (§12.2). Members that the commit removes need not list it, because they do not process the
// commit.
func (a *applier) checkSupport(t ProposalType) error {
	gone := make(map[uint32]struct{})
	for _, p := range a.proposals {
		if leaf, ok := p.removes(); ok {
			gone[leaf] = struct{}{}
		}
	}
	for i, l := range a.g.Tree.leaves {
		if _, removed := gone[uint32(i)]; l != nil && !removed && !l.capabilities.proposals.contains(uint16(t)) {
			return refuseCommit(ErrMalformed, "Capabilities.proposals", "12.2",
				"leaf "+strconv.Itoa(i)+" does not list proposal type "+strconv.Itoa(int(t)))
		}
	}
	return nil
}

// checkProposal checks one proposal (§12.1). touched are the leaves and psks the PSKs of earlier
// proposals. checkProposal adds to both.
func (a *applier) checkProposal(p sentProposal, touched map[uint32]struct{}, psks map[string]struct{}) error {
	refuse := func(field, section, reason string) error {
		return refuseCommit(ErrMalformed, field, section, reason)
	}
	byCommitter := func(leaf uint32) bool { return !a.change.External && leaf == a.c.Sender }
	touch := func(leaf uint32) bool {
		_, twice := touched[leaf]
		touched[leaf] = struct{}{}
		return !twice
	}
	switch p.Type {
	case ProposalAdd:
		return a.checkAdd(p.KeyPackage)
	case ProposalUpdate:
		switch {
		case byCommitter(p.leaf):
			return refuse("Update", "12.2", "of the committer")
		case !p.member || a.g.Tree.leaf(p.leaf) == nil:
			return refuse("Update", "12.1.2", "not from a member")
		case !touch(p.leaf):
			return refuse("Update", "12.2", "another proposal for the same leaf")
		}
		return a.checkUpdate(p.leaf, p.Proposal.leaf)
	case ProposalRemove:
		switch {
		case a.g.Tree.leaf(p.Removed) == nil:
			return refuse("Remove.removed", "12.1.3", "a blank leaf")
		case byCommitter(p.Removed):
			return refuse("Remove.removed", "12.2", "the committer")
		case !touch(p.Removed):
			return refuse("Remove.removed", "12.2", "another proposal for the same leaf")
		}
	case ProposalSelfRemove:
		switch {
		case !p.member || a.g.Tree.leaf(p.leaf) == nil:
			return refuse("SelfRemove", "12.2", "not from a member")
		case byCommitter(p.leaf):
			return refuse("SelfRemove", "12.2", "of the committer")
		case !touch(p.leaf):
			return refuse("SelfRemove", "12.2", "another proposal for the same leaf")
		}
	case ProposalReInit:
		a.change.ReInit, a.change.ReInitBy = p.ReInit, p.by
	case ProposalPSK:
		switch {
		case len(p.psk.nonce) != a.g.CipherSuite.hashSize():
			return refuse("PreSharedKeyID.psk_nonce", "12.1.4", "not of the size of the suite's hash")
		case p.psk.usage > 1 && a.g.Epoch > 0: // only a commit at epoch 0 may reinitialise or branch
			return refuse("PreSharedKeyID.usage", "12.1.4", "reinit or branch outside of these")
		case !addKey(psks, p.psk.raw):
			return refuse("PreSharedKeyID", "12.2", "one PSK twice")
		}
	case ProposalExternalInit:
		if !a.g.CipherSuite.validKEMOutput(p.kemOutput) {
			return refuse("ExternalInit.kem_output", "8.3", "not an output of the suite's KEM")
		}
	}
	return nil
}

// checkAdd checks a KeyPackage by §10.1, except its lifetime.
func (a *applier) checkAdd(k *KeyPackage) error {
	switch {
	case k.CipherSuite != a.g.CipherSuite:
		return refuseCommit(ErrMalformed, "KeyPackage.cipher_suite", "10.1", "not the group's")
	case k.leaf.source != leafFromKeyPackage:
		return refuseCommit(ErrMalformed, "LeafNode.leaf_node_source", "7.3", "not key_package")
	}
	for _, step := range []func() error{k.checkKeys, k.checkCapabilities, k.VerifySignatures} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// checkUpdate checks the new leaf of an Update (§7.3).
func (a *applier) checkUpdate(index uint32, l *leafNode) error {
	switch {
	case l.source != leafFromUpdate:
		return refuseCommit(ErrMalformed, "LeafNode.leaf_node_source", "7.3", "not update")
	case bytes.Equal(l.encryptionKey, a.g.Tree.leaves[index].encryptionKey):
		return refuseCommit(ErrMalformed, "LeafNode.encryption_key", "7.3", "that of the leaf it replaces")
	}
	return a.g.CipherSuite.verifyLeaf(l, a.g.GroupID, index)
}
