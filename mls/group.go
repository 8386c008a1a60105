package mls

import (
	"bytes"
	"encoding/binary"
)

// Group is the public state of a group at one epoch: the GroupContext (RFC 9420 §8.1), the tree,
// and the confirmation tag of the epoch. It is immutable. Slices alias the parsed input.
type Group struct {
	CipherSuite             CipherSuite
	GroupID                 []byte
	Epoch                   uint64
	ConfirmedTranscriptHash []byte
	ContextExtensions       Extensions
	ConfirmationTag         []byte // of the GroupInfo or commit; only members can verify it
	Tree                    *Tree
}

// Tree parses the ratchet_tree extension of the GroupInfo. It does not verify the tree.
//
// Errors: ErrUnsupported (no such extension; see also ParseTree), ErrMalformed.
func (g *GroupInfo) Tree() (*Tree, error) {
	data, ok := g.Extensions.Get(ExtensionRatchetTree)
	if !ok {
		return nil, refuseInfo(ErrUnsupported, "extensions", "12.4.3.3", "no ratchet_tree")
	}
	return ParseTree(g.CipherSuite, data)
}

// Verify makes every check of a joiner that needs no secret (RFC 9420 §12.4.3.1). The tree has the
// hash in the GroupInfo and is valid (Tree.Verify). A member signed the GroupInfo. Every member has
// the capabilities that the group requires (§11.1), and supports the extensions of its GroupContext
// (§13.4). The tree is usually that of the GroupInfo itself.
//
// Errors: ErrUnsupported, ErrMalformed, ErrBadSignature.
func (g *GroupInfo) Verify(t *Tree) (*Group, error) { return g.verify(t, &Tree{}) }

func (g *GroupInfo) verify(t, known *Tree) (*Group, error) {
	group, err := g.Trust(t)
	if err != nil {
		return nil, err
	}
	signer := t.leaf(g.Signer)
	if signer == nil {
		return nil, refuseInfo(ErrMalformed, "signer", "12.4.3.1", "a blank leaf")
	}
	verify := g.CipherSuite.verifier(signer.signatureKey)
	if verify == nil || !verify(signContent("GroupInfoTBS", g.tbs()), g.Signature) {
		return nil, refuseInfo(ErrBadSignature, "signature", "12.4.3", "")
	}
	if err := t.verify(g.GroupID, known); err != nil {
		return nil, err
	}
	if err := t.checkContext(g.ContextExtensions); err != nil {
		return nil, err
	}
	return group, nil
}

// Trust is Verify for a stored GroupInfo that passed Verify before. It checks the tree hash again,
// but no signature.
//
// At epoch 0 the confirmation_tag may be empty. In §11 the creator must compute a tag, but existing
// clients leave out the tag, even from their transcript hashes.
//
// Errors: ErrUnsupported, ErrMalformed.
func (g *GroupInfo) Trust(t *Tree) (*Group, error) {
	switch size := g.CipherSuite.hashSize(); {
	case !g.CipherSuite.Supported():
		return nil, refuseInfo(ErrUnsupported, "GroupContext.cipher_suite", "17.1", g.CipherSuite.String())
	case t.suite != g.CipherSuite || !bytes.Equal(g.TreeHash, t.Hash()):
		return nil, refuseInfo(ErrMalformed, "GroupContext.tree_hash", "12.4.3.1", "not the hash of the tree")
	case len(g.ConfirmationTag) != size && (g.Epoch > 0 || len(g.ConfirmationTag) > 0):
		return nil, refuseInfo(ErrMalformed, "confirmation_tag", "6.1", "not of the size of the suite's MAC")
	case len(g.ConfirmedTranscriptHash) != size && (g.Epoch > 0 || len(g.ConfirmedTranscriptHash) > 0):
		return nil, refuseInfo(ErrMalformed, "GroupContext.confirmed_transcript_hash", "8.2",
			"not of the size of the suite's hash")
	}
	return &Group{
		CipherSuite:             g.CipherSuite,
		GroupID:                 g.GroupID,
		Epoch:                   g.Epoch,
		ConfirmedTranscriptHash: g.ConfirmedTranscriptHash,
		ContextExtensions:       g.ContextExtensions,
		ConfirmationTag:         g.ConfirmationTag,
		Tree:                    t,
	}, nil
}

// tbs returns GroupInfoTBS: everything before the signature (§12.4.3).
func (g *GroupInfo) tbs() []byte {
	signature := len(appendVarint(nil, len(g.Signature))) + len(g.Signature)
	return g.Raw[:len(g.Raw)-signature]
}

// Matches checks that the GroupInfo describes this group at this epoch, in every public field, and
// that a member signed the GroupInfo. It does not verify the group's tree, because Verify or Apply
// returned g. The GroupInfo may lack a ratchet_tree extension. If it has one, the extension must
// equal the group's tree.
//
// Errors: ErrMalformed, ErrBadSignature.
func (g *Group) Matches(info *GroupInfo) error {
	if !bytes.Equal(info.Raw[:min(len(info.Raw), len(g.Context()))], g.Context()) {
		return refuseInfo(ErrMalformed, "group_context", "12.4.3", "not that of the group at this epoch")
	}
	if !bytes.Equal(info.ConfirmationTag, g.ConfirmationTag) {
		return refuseInfo(ErrMalformed, "confirmation_tag", "12.4.3", "not that of the commit")
	}
	if data, ok := info.Extensions.Get(ExtensionRatchetTree); ok && !bytes.Equal(data, g.Tree.Encode()) {
		return refuseInfo(ErrMalformed, "ratchet_tree", "12.4.3.3", "not the tree of the group at this epoch")
	}
	signer := g.Tree.leaf(info.Signer)
	if signer == nil {
		return refuseInfo(ErrMalformed, "signer", "12.4.3.1", "a blank leaf")
	}
	verify := g.CipherSuite.verifier(signer.signatureKey)
	if verify == nil || !verify(signContent("GroupInfoTBS", info.tbs()), info.Signature) {
		return refuseInfo(ErrBadSignature, "signature", "12.4.3", "")
	}
	return nil
}

// Context returns the encoded GroupContext (RFC 9420 §8.1).
func (g *Group) Context() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(VersionMLS10))
	b = binary.BigEndian.AppendUint16(b, uint16(g.CipherSuite))
	b = appendOpaque(b, g.GroupID)
	b = binary.BigEndian.AppendUint64(b, g.Epoch)
	b = appendOpaque(b, g.Tree.Hash())
	b = appendOpaque(b, g.ConfirmedTranscriptHash)
	return appendOpaque(b, g.ContextExtensions)
}

// refuseInfo returns the error for a GroupInfo.
func refuseInfo(kind error, field, section, reason string) error {
	return &ParseError{Object: "GroupInfo", Field: field, Section: section, Reason: reason, Kind: kind}
}
