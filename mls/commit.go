package mls

import "strconv"

// ProposalType is a code point of RFC 9420 §17.4.
type ProposalType uint16

const (
	ProposalAdd                    ProposalType = 1
	ProposalUpdate                 ProposalType = 2
	ProposalRemove                 ProposalType = 3
	ProposalPSK                    ProposalType = 4
	ProposalReInit                 ProposalType = 5
	ProposalExternalInit           ProposalType = 6
	ProposalGroupContextExtensions ProposalType = 7
)

// commit walks a Commit (RFC 9420 §12.4).
func (r *reader) commit() {
	prev := r.enter("Commit", "12.4")
	r.vector("proposals", (*reader).proposalOrRef)
	if r.optional("path") {
		r.updatePath()
	}
	r.in = prev
}

// proposalOrRef walks a ProposalOrRef (§12.4).
func (r *reader) proposalOrRef() {
	switch t := r.u8("proposals.type"); t {
	case 1:
		r.proposal()
	case 2:
		r.opaque("proposals.reference")
	default:
		r.malformed("proposals.type", "unknown value "+strconv.Itoa(int(t)))
	}
}

// proposal walks a Proposal (§12.1). A type the RFC does not define cannot be
// read past, since nothing says where it ends; §13.5 bars GREASE here.
func (r *reader) proposal() ProposalType {
	prev := r.enter("Proposal", "12.1")
	t := ProposalType(r.u16("proposal_type"))
	switch t {
	case ProposalAdd:
		r.keyPackage()
	case ProposalUpdate:
		r.leafNode()
	case ProposalRemove:
		r.u32("remove.removed")
	case ProposalPSK:
		r.preSharedKeyID()
	case ProposalReInit:
		r.reInit()
	case ProposalExternalInit:
		r.opaque("external_init.kem_output")
	case ProposalGroupContextExtensions:
		r.extensions("group_context_extensions.extensions")
	default:
		r.fail(ErrUnsupported, "proposal_type", "unknown value "+strconv.Itoa(int(t)))
	}
	r.in = prev
	return t
}

// preSharedKeyID walks a PreSharedKeyID (§8.4).
func (r *reader) preSharedKeyID() {
	prev := r.enter("PreSharedKeyID", "8.4")
	switch t := r.u8("psktype"); t {
	case 1: // external
		r.opaque("psk_id")
	case 2: // resumption
		if u := r.u8("usage"); u < 1 || u > 3 {
			r.malformed("usage", "unknown value "+strconv.Itoa(int(u)))
		}
		r.opaque("psk_group_id")
		r.u64("psk_epoch")
	default:
		r.malformed("psktype", "unknown value "+strconv.Itoa(int(t)))
	}
	r.opaque("psk_nonce")
	r.in = prev
}

// reInit walks a ReInit (§12.1.5). It may announce any version and suite.
func (r *reader) reInit() {
	prev := r.enter("ReInit", "12.1.5")
	r.opaque("group_id")
	r.u16("version")
	r.u16("cipher_suite")
	r.extensions("extensions")
	r.in = prev
}

// updatePath walks an UpdatePath (§7.6).
func (r *reader) updatePath() {
	prev := r.enter("UpdatePath", "7.6")
	r.leafNode()
	r.vector("nodes", func(r *reader) {
		r.opaque("nodes.encryption_key")
		r.vector("nodes.encrypted_path_secret", (*reader).hpkeCiphertext)
	})
	r.in = prev
}

// hpkeCiphertext walks an HPKECiphertext (§7.6).
func (r *reader) hpkeCiphertext() {
	r.opaque("kem_output")
	r.opaque("ciphertext")
}
