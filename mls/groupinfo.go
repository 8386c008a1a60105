package mls

import (
	"encoding/binary"
	"strconv"
)

// GroupInfo describes a group at one epoch to a client that joins it (RFC 9420 §12.4.3). Nothing in
// it is encrypted. Byte slices alias the parsed input.
type GroupInfo struct {
	Version                 ProtocolVersion
	CipherSuite             CipherSuite
	GroupID                 []byte // 1…MaxGroupIDSize bytes
	Epoch                   uint64 // at most MaxEpoch
	TreeHash                []byte
	ConfirmedTranscriptHash []byte
	ContextExtensions       Extensions // extensions of the GroupContext, which apply to every member

	Extensions      Extensions // extensions of the GroupInfo itself
	ConfirmationTag []byte
	Signer          uint32 // leaf index
	Signature       []byte // not verified; Verify verifies it with the ratchet tree

	HasRatchetTree bool // the tree is included, so that a joiner needs nothing else
	HasExternalPub bool // external commits are possible

	// Raw is the bare GroupInfo, without MLSMessage framing.
	Raw []byte
}

// ParseGroupInfo parses a GroupInfo, bare or framed as an MLSMessage (see the package comment). Its
// ratchet_tree and external_pub extensions must be well-formed too. It verifies neither the
// signature nor the tree.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported.
func ParseGroupInfo(msg []byte) (GroupInfo, error) {
	if err := checkSize("GroupInfo", msg, MaxGroupInfoSize); err != nil {
		return GroupInfo{}, err
	}
	r := newReader("GroupInfo", unframe(msg, WireFormatGroupInfo))
	g := r.groupInfo()
	if err := r.finish(); err != nil {
		return GroupInfo{}, err
	}
	if err := checkSize("GroupInfo", msg, g.CipherSuite.Limits().GroupInfo); err != nil {
		return GroupInfo{}, err
	}
	if tree, ok := g.Extensions.Get(ExtensionRatchetTree); ok {
		g.HasRatchetTree = true
		if err := checkRatchetTree(tree); err != nil {
			return GroupInfo{}, err
		}
	}
	if pub, ok := g.Extensions.Get(ExtensionExternalPub); ok {
		g.HasExternalPub = true
		if err := checkExternalPub(g.CipherSuite, pub); err != nil {
			return GroupInfo{}, err
		}
	}
	return g, nil
}

// groupInfo reads a bare GroupInfo.
func (r *reader) groupInfo() (g GroupInfo) {
	start := r.s
	r.groupContext(&g)
	r.in = place{"GroupInfo", "12.4.3"}
	g.Extensions = r.extensions("extensions")
	g.ConfirmationTag = r.opaque("confirmation_tag")
	g.Signer = r.u32("signer")
	g.Signature = r.opaque("signature")
	g.Raw = r.since(start)
	return g
}

// groupContext reads a GroupContext (§8.1) into g.
func (r *reader) groupContext(g *GroupInfo) {
	r.in = place{"GroupContext", "8.1"}
	g.Version = r.version()
	g.CipherSuite = CipherSuite(r.u16("cipher_suite"))
	g.GroupID = r.groupID()
	g.Epoch = r.epoch()
	g.TreeHash = r.opaque("tree_hash")
	g.ConfirmedTranscriptHash = r.opaque("confirmed_transcript_hash")
	g.ContextExtensions = r.contextExtensions("extensions")
}

// contextExtensions reads the extensions of a GroupContext.
func (r *reader) contextExtensions(field string) Extensions {
	e := r.extensions(field)
	if len(e) > MaxContextExtensionsSize {
		r.in.section = ""
		r.fail(ErrTooLarge, field, sizes(len(e), MaxContextExtensionsSize))
	}
	return e
}

// checkExternalPub checks the form of an external_pub extension (§12.4.3.2). Its own error names
// the form that a known library writes.
func checkExternalPub(suite CipherSuite, data []byte) error {
	r := newReader("GroupInfo", data)
	r.in = place{"ExternalPub", "12.4.3.2"}
	r.opaque("external_pub")
	if r.err == nil && len(r.s) == 0 {
		return nil
	}
	reason := "cut short"
	if r.err == nil {
		reason = strconv.Itoa(len(r.s)) + " bytes after the key"
	}
	if p := suite.params(); p != nil && len(data) == p.kem.keySize {
		reason = strconv.Itoa(len(data)) +
			" bytes without their length, as ts-mls writes them; write opaque external_pub<V>: the length, then the key"
	}
	return refuseInfo(ErrMalformed, "ExternalPub.external_pub", "12.4.3.2", reason)
}

// checkRatchetTree checks the form of a ratchet_tree extension (§12.4.3.3).
func checkRatchetTree(data []byte) error {
	r := newReader("GroupInfo", data)
	r.ratchetTree(0)
	return r.finish()
}

// parentNode reads a ParentNode (§7.1).
func (r *reader) parentNode() (p parentNode) {
	prev := r.enter("ParentNode", "7.1")
	p.encryptionKey = r.opaque("encryption_key")
	p.parentHash = r.opaque("parent_hash")
	list := r.opaque("unmerged_leaves")
	if len(list)%4 != 0 {
		r.malformed("unmerged_leaves", "not a whole number of entries")
	}
	p.unmerged = make([]uint32, 0, len(list)/4)
	for ; r.err == nil && len(list) > 0; list = list[4:] {
		p.unmerged = append(p.unmerged, binary.BigEndian.Uint32(list))
	}
	r.in = prev
	return p
}
