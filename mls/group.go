package mls

import (
	"bytes"
	"encoding/binary"
)

// Group is all of a group that is public at one epoch: the GroupContext (RFC
// 9420 §8.1), the tree, and the confirmation tag that started the epoch. It does
// not change once made; slices alias what they were parsed from.
type Group struct {
	CipherSuite             CipherSuite
	GroupID                 []byte
	Epoch                   uint64
	ConfirmedTranscriptHash []byte
	ContextExtensions       Extensions
	ConfirmationTag         []byte // of the GroupInfo or commit; not verified: that takes the epoch's secrets
	Tree                    *Tree
}

// Tree reads the ratchet_tree extension of the GroupInfo. The tree is not
// verified.
//
// Errors: ErrUnsupported (no such extension; see also ParseTree), ErrMalformed.
func (g *GroupInfo) Tree() (*Tree, error) {
	data, ok := g.Extensions.Get(ExtensionRatchetTree)
	if !ok {
		return nil, refuseInfo(ErrUnsupported, "extensions", "12.4.3.3", "no ratchet_tree")
	}
	return ParseTree(g.CipherSuite, data)
}

// Verify checks all that a joiner checks without secrets (RFC 9420 §12.4.3.1):
// that the tree is the one whose hash the GroupInfo gives, that a member of it
// signed the GroupInfo, that the tree is valid (Tree.Verify), and that every
// member has the capabilities the group requires (§11.1). The tree is usually
// that of the GroupInfo itself.
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
	if err := t.checkRequired(g.ContextExtensions); err != nil {
		return nil, err
	}
	return group, nil
}

// Trust is Verify for a GroupInfo that has passed it before and was kept since:
// nothing but the tree hash is checked again, and no signature.
//
// At epoch 0 the confirmation_tag may be empty. §11 has the creator compute one,
// but clients in the field leave it out, in their transcript hashes too.
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
		return nil, refuseInfo(ErrMalformed, "GroupContext.confirmed_transcript_hash", "8.2", "not of the size of the suite's hash")
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

// tbs returns GroupInfoTBS: everything above the signature (§12.4.3).
func (g *GroupInfo) tbs() []byte {
	signature := len(appendVarint(nil, len(g.Signature))) + len(g.Signature)
	return g.Raw[:len(g.Raw)-signature]
}

// Matches checks that the GroupInfo, made by a member of epoch g.Epoch, is of
// this group at this epoch in every public field, and signed by a member. The
// group is one that Verify or Apply returned, so its tree needs no verifying.
// The GroupInfo may lack the ratchet_tree extension; one that it has must be the
// group's, byte for byte.
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

// refuseInfo reports what is wrong with a GroupInfo.
func refuseInfo(kind error, field, section, reason string) error {
	return &ParseError{Object: "GroupInfo", Field: field, Section: section, Reason: reason, Kind: kind}
}
