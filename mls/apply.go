package mls

import (
	"errors"
	"time"
)

// Change is the public part of what a commit does to a group.
type Change struct {
	Adds    []Addition // in the order of the commit; includes an external committer
	Removes []Removal
	Updates []Update // leaves with new content; the committer's leaf comes last
	// Committer is the sender's leaf, in the next epoch.
	Committer uint32
	External  bool    // the committer was not a member, and is among Adds
	ReInit    *ReInit // the group that replaces this group (§11.2); nil means none
	ReInitBy  Author
	// Context says that the extensions of the GroupContext are replaced (§12.1.7).
	Context   bool
	ContextBy Author
	Next      *Group
}

// Author is who proposed a part of a change: the committer, unless the commit refers to a proposal
// of somebody else. The zero value means that the author is not known.
type Author struct {
	DID      string // account, in the form of Member.DID
	External bool   // one of the group's external senders (§12.1.8.1)
}

// Addition is a new member, with its new leaf.
type Addition struct {
	Member
	// KeyPackage is the KeyPackage that the member was added with. It is nil for an external
	// committer, and if the KeyPackage is not known.
	KeyPackage KeyPackageRef
	NotAfter   time.Time // end of the KeyPackage's lifetime; set if KeyPackage is
}

// Removal is a former member, with its last leaf.
type Removal struct {
	Member
	By Author // who proposed it, by Remove (§12.1.3) or SelfRemove
}

// Update says how a member's leaf changed. Leaf is the same in both.
type Update struct{ Before, After Member }

// applier applies one commit.
type applier struct {
	g         *Group
	c         *Commit
	tree      *Tree // becomes the tree of the next epoch
	context   Extensions
	committer Author
	verifier  proposalVerifier
	proposals []sentProposal
	added     []uint32 // leaves that proposals added
	change    *Change
}

// sentProposal is a proposal and its sender.
type sentProposal struct {
	*Proposal
	leaf   uint32 // leaf of a member that sent it
	member bool
	by     Author
}

// Apply checks that this group can accept the commit at this epoch, and returns what it changes.
// g does not change. Its tree must be verified already.
//
// Apply checks the sender's signature (RFC 9420 §6.1) and what a commit may contain (§12.2,
// §12.4.3.2). It checks the tree of the next epoch, with every new leaf and every parent hash of
// the path (§7.3, §7.5, §12.4.2). It cannot check what needs a secret: the two tags, the path's
// ciphertexts and the PSKs. It checks neither lifetimes nor whether the application allows the
// change.
//
// Proposals that the commit refers to must be among pending, in any order. Apply verifies their
// signatures, even if a proposal is opaque.
//
// The cost is linear in the commit and the tree. Signatures are most of it: one for the commit, one
// for each new leaf, two for each Add, and one over the whole GroupContext for each proposal by
// reference. A caller that stores proposals must therefore limit their number per epoch.
//
// Errors: ErrMalformed, ErrBadSignature, ErrUnsupported. An opaque proposal, or a reference to a
// proposal that is not among pending, is ErrUnsupported. After ErrUnsupported the sender's
// signature was verified, and what the commit changes is not known.
func (g *Group) Apply(c *Commit, pending ...*ProposalMessage) (*Change, error) {
	a := &applier{g: g, c: c, tree: g.Tree.clone(), context: g.ContextExtensions, change: &Change{}}
	for _, step := range []func() error{
		a.checkHeader,
		a.checkSignature,
		func() error { return a.resolve(pending) },
		a.checkProposals,
		a.applyProposals,
		a.applyPath,
		a.checkTree,
	} {
		if err := step(); err != nil {
			return nil, inObject("Commit", err)
		}
	}
	a.change.Next = a.next()
	return a.change, nil
}

// inObject makes an error say that the object is at fault, and not the part in it.
func inObject(object string, err error) error {
	var p *ParseError
	if !errors.As(err, &p) {
		return err
	}
	in := *p
	in.Object = object
	return &in
}

func (a *applier) checkHeader() error {
	size := a.g.CipherSuite.hashSize()
	switch {
	case !a.g.CipherSuite.Supported():
		return refuseCommit(ErrUnsupported, "cipher_suite", "17.1", a.g.CipherSuite.String())
	case string(a.c.GroupID) != string(a.g.GroupID):
		return refuseCommit(ErrMalformed, "FramedContent.group_id", "6", "another group")
	case a.c.Epoch != a.g.Epoch:
		return refuseCommit(ErrMalformed, "FramedContent.epoch", "12.4.2", "another epoch")
	case a.g.Epoch >= MaxEpoch:
		return refuseCommit(ErrUnsupported, "FramedContent.epoch", "", "the last")
	case len(a.c.ConfirmationTag) != size:
		return refuseCommit(ErrMalformed, "FramedContentAuthData.confirmation_tag", "6.1",
			"not of the size of the suite's MAC")
	case a.c.SenderType == SenderTypeMember && len(a.c.parts.membershipTag) != size:
		return refuseCommit(ErrMalformed, "PublicMessage.membership_tag", "6.2", "not of the size of the suite's MAC")
	}
	a.change.External = a.c.SenderType == SenderTypeNewMemberCommit
	return nil
}

// checkSignature verifies the sender's signature (§6.1) with the key of the member's leaf. An
// external committer's leaf is in the commit's path.
func (a *applier) checkSignature() error {
	var signer *leafNode
	switch {
	case !a.change.External:
		if signer = a.g.Tree.leaf(a.c.Sender); signer == nil {
			return refuseCommit(ErrMalformed, "FramedContent.sender", "6.1", "a blank leaf")
		}
	case a.c.parts.path == nil:
		return refuseCommit(ErrMalformed, "Commit.path", "12.4.3.2", "an external commit without a path")
	default:
		signer = &a.c.parts.path.leaf
	}
	a.committer = Author{DID: signer.member(a.c.Sender).DID()}
	a.verifier = proposalVerifier{Group: a.g, signed: a.g.Context()}
	return a.g.verifyHandshake(&a.c.parts, a.c.SenderType, signer.signatureKey, a.verifier.signed)
}

// verifyHandshake verifies the signature of a PublicMessage.
func (g *Group) verifyHandshake(parts *handshake, sender SenderType, key, context []byte) error {
	verify := g.CipherSuite.verifier(key)
	if verify == nil {
		return refuseCommit(ErrMalformed, "LeafNode.signature_key", "5.1.1", g.CipherSuite.wrongSignatureKey(key))
	}
	for _, p := range parts.readings(g.CipherSuite, sender) {
		if verify(signContent("FramedContentTBS", p.tbs(context)...), p.signature) {
			return nil
		}
	}
	return refuseCommit(ErrBadSignature, "FramedContentAuthData.signature", "6.1", "")
}

// checkTree checks what all leaves of the next epoch must support (§7.3), and that no key occurs
// twice. It does not verify unchanged leaves again. It verifies no parents: applyPath computed the
// parents of the path, and all other parents are unchanged.
func (a *applier) checkTree() error {
	for _, step := range []func() error{a.tree.checkKeys, a.tree.checkCapabilities} {
		if err := step(); err != nil {
			return err
		}
	}
	return a.tree.checkContext(a.context)
}

// next returns the group of the next epoch, with its transcript hash (§8.2).
func (a *applier) next() *Group {
	h := a.g.CipherSuite.newHash()
	h.Write(a.g.ConfirmedTranscriptHash)
	h.Write(appendOpaque(nil, a.g.ConfirmationTag))
	interim := h.Sum(nil)
	h.Reset()
	h.Write(interim)
	h.Write(a.c.parts.authenticated())
	return &Group{
		CipherSuite:             a.g.CipherSuite,
		GroupID:                 a.g.GroupID,
		Epoch:                   a.g.Epoch + 1,
		ConfirmedTranscriptHash: h.Sum(nil),
		ContextExtensions:       a.context,
		ConfirmationTag:         a.c.ConfirmationTag,
		Tree:                    a.tree,
	}
}

// refuseCommit returns the error for a commit.
func refuseCommit(kind error, field, section, reason string) error {
	return &ParseError{Object: "Commit", Field: field, Section: section, Reason: reason, Kind: kind}
}
