package mls

import "strconv"

// ProposalType is a code point of RFC 9420 §17.4.
type ProposalType uint16

// The proposal types that this package knows. SelfRemove is from draft-ietf-mls-extensions.
const (
	ProposalAdd                    ProposalType = 1
	ProposalUpdate                 ProposalType = 2
	ProposalRemove                 ProposalType = 3
	ProposalPSK                    ProposalType = 4
	ProposalReInit                 ProposalType = 5
	ProposalExternalInit           ProposalType = 6
	ProposalGroupContextExtensions ProposalType = 7
	ProposalSelfRemove             ProposalType = 0x000A
)

// isDefault reports whether every client supports t without listing it (§7.2).
func (t ProposalType) isDefault() bool {
	return t >= ProposalAdd && t <= ProposalGroupContextExtensions
}

// Proposal is one entry of a Commit, or the content of a ProposalMessage (RFC 9420 §12.1, §12.4).
// Only the fields of its type are set. Slices alias the message.
type Proposal struct {
	Type       ProposalType // 0 for a proposal by reference
	Reference  []byte       // ProposalRef, by reference only
	KeyPackage *KeyPackage  // ProposalAdd; parsing does not verify it
	Removed    uint32       // ProposalRemove: leaf index
	ReInit     *ReInit      // ProposalReInit
	Extensions Extensions   // ProposalGroupContextExtensions

	// Opaque says that this package does not know the type. For an opaque proposal, only Type is
	// known. In a commit, an opaque proposal hides all proposals after it in the list.
	Opaque bool

	unread    []byte    // for an opaque proposal in a commit, the rest of the list
	leaf      *leafNode // ProposalUpdate
	psk       *pskID    // ProposalPSK
	kemOutput []byte    // ProposalExternalInit
}

// ReInit asks to replace the group by another one (RFC 9420 §12.1.5).
type ReInit struct {
	GroupID     []byte // id of the other group, of any size
	Version     ProtocolVersion
	CipherSuite CipherSuite
	Extensions  Extensions // extensions of the other group's GroupContext
}

// pskID is a PreSharedKeyID (§8.4).
type pskID struct {
	usage uint8 // usage of a resumption PSK; 0 for an external PSK
	nonce []byte
	raw   []byte
}

// updatePath is an UpdatePath (§7.6).
type updatePath struct {
	leaf  leafNode
	nodes []pathNode
}

// pathNode is an UpdatePathNode (§7.6).
type pathNode struct {
	encryptionKey []byte
	secrets       []byte // the encoded HPKECiphertexts
}

// commit reads a Commit (RFC 9420 §12.4). It also stores it in r.into unless that is nil.
func (r *reader) commit() {
	prev := r.enter("Commit", "12.4")
	if r.into != nil { // count first, to allocate once: a proposal can be as small as 7 bytes
		count, n := *r, 0
		count.into = nil
		count.vector("proposals", func(r *reader) { r.proposalOrRef(); n++ })
		r.into.proposals = make([]Proposal, 0, n)
	}
	r.vector("proposals", (*reader).proposalOrRef)
	if r.optional("path") {
		r.updatePath()
	}
	r.in = prev
}

// proposalOrRef reads a ProposalOrRef (§12.4).
func (r *reader) proposalOrRef() {
	switch t := r.u8("proposals.type"); t {
	case 1:
		switch t, opaque := r.proposal(); {
		case opaque:
			r.hideRest()
		case t == ProposalSelfRemove:
			r.in.section = "12.2"
			r.malformed("proposals", "SelfRemove by value, which would remove the committer; "+
				"send it as a proposal, and let another member's commit refer to it")
		}
	case 2:
		ref := r.opaque("proposals.reference")
		if r.into != nil {
			r.into.proposals = append(r.into.proposals, Proposal{Reference: ref})
		}
	default:
		r.malformed("proposals.type", "unknown value "+strconv.Itoa(int(t)))
	}
}

// hideRest reads the rest of a commit's list of proposals, after the type of an opaque proposal.
func (r *reader) hideRest() {
	if r.into != nil {
		r.into.proposals[len(r.into.proposals)-1].unread = r.s
	}
	r.s = nil
}

// proposal reads a Proposal (§12.1). It also stores it in r.into unless that is nil. If the
// proposal is opaque, it reads only the type.
func (r *reader) proposal() (t ProposalType, opaque bool) {
	prev := r.enter("Proposal", "12.1")
	p := Proposal{Type: ProposalType(r.u16("proposal_type"))}
	switch p.Type {
	case ProposalAdd:
		k := r.keyPackage()
		if r.into != nil && r.err == nil {
			stored := k
			stored.setDerived()
			p.KeyPackage = &stored
		}
	case ProposalUpdate:
		l := r.leafNode()
		if r.into != nil {
			stored := l
			p.leaf = &stored
		}
	case ProposalRemove:
		p.Removed = r.u32("remove.removed")
	case ProposalPSK:
		id := r.preSharedKeyID()
		if r.into != nil {
			stored := id
			p.psk = &stored
		}
	case ProposalReInit:
		re := r.reInit()
		if r.into != nil {
			stored := re
			p.ReInit = &stored
		}
	case ProposalExternalInit:
		p.kemOutput = r.opaque("external_init.kem_output")
	case ProposalGroupContextExtensions:
		p.Extensions = r.contextExtensions("group_context_extensions.extensions")
	case ProposalSelfRemove: // a SelfRemove has no content
	case 0: // reserved; no proposal here has this type
		r.malformed("proposal_type", "0")
	default:
		p.Opaque = true
	}
	if r.into != nil {
		r.into.proposals = append(r.into.proposals, p)
	}
	r.in = prev
	return p.Type, p.Opaque
}

// preSharedKeyID reads a PreSharedKeyID (§8.4).
func (r *reader) preSharedKeyID() (id pskID) {
	prev := r.enter("PreSharedKeyID", "8.4")
	start := r.s
	switch t := r.u8("psktype"); t {
	case 1: // external
		r.opaque("psk_id")
	case 2: // resumption
		if id.usage = r.u8("usage"); id.usage < 1 || id.usage > 3 {
			r.malformed("usage", "unknown value "+strconv.Itoa(int(id.usage)))
		}
		r.opaque("psk_group_id")
		r.u64("psk_epoch")
	default:
		r.malformed("psktype", "unknown value "+strconv.Itoa(int(t)))
	}
	id.nonce = r.opaque("psk_nonce")
	id.raw = r.since(start)
	r.in = prev
	return id
}

// reInit reads a ReInit (§12.1.5). It may have any suite. Its version must not be lower than the
// group's version, which is mls10.
func (r *reader) reInit() (re ReInit) {
	prev := r.enter("ReInit", "12.1.5")
	re.GroupID = r.opaque("group_id")
	if re.Version = ProtocolVersion(r.u16("version")); r.err == nil && re.Version < VersionMLS10 {
		r.malformed("version", strconv.Itoa(int(re.Version))+", lower than the group's")
	}
	re.CipherSuite = CipherSuite(r.u16("cipher_suite"))
	re.Extensions = r.extensions("extensions")
	r.in = prev
	return re
}

// maxPathNodes is the largest number of parents above a leaf. Leaf indices have 32 bits.
const maxPathNodes = 32

// updatePath reads an UpdatePath (§7.6). It also stores it in r.into unless that is nil.
func (r *reader) updatePath() {
	prev := r.enter("UpdatePath", "7.6")
	var path updatePath
	path.leaf = r.leafNode()
	n := 0
	r.vector("nodes", func(r *reader) {
		if n++; n > maxPathNodes {
			r.malformed("nodes", "more than a tree has levels")
		}
		key := r.opaque("nodes.encryption_key")
		secrets := r.vector("nodes.encrypted_path_secret", (*reader).hpkeCiphertext)
		if r.into != nil {
			path.nodes = append(path.nodes, pathNode{key, secrets})
		}
	})
	if r.into != nil {
		stored := path
		r.into.path = &stored
	}
	r.in = prev
}

// hpkeCiphertext reads an HPKECiphertext (§7.6) without storing it.
func (r *reader) hpkeCiphertext() {
	r.opaque("kem_output")
	r.opaque("ciphertext")
}
