package mls

import (
	"strconv"

	"golang.org/x/crypto/cryptobyte"
)

// Header is the part of a message, proposal or commit that is never encrypted (RFC 9420 §6). The
// server takes epoch and group from here, never from the parameters of a request.
//
// A PublicMessage with application data parses, although §6 forbids sending one. A caller that must
// never see plaintext refuses WireFormatPublicMessage with ContentTypeApplication.
type Header struct {
	WireFormat  WireFormat
	GroupID     []byte // 1…MaxGroupIDSize bytes; aliases the message
	Epoch       uint64 // the sender's epoch, at most MaxEpoch; a commit creates Epoch+1
	ContentType ContentType

	// SenderType and Sender are set for a PublicMessage only. Sender is the leaf index of a member,
	// or the index of an external sender.
	SenderType SenderType
	Sender     uint32
}

// ParseHeader parses the header of an MLSMessage with a PublicMessage or a PrivateMessage. It
// checks that the whole frame is well-formed and that nothing follows it. It checks the form of
// everything in a PublicMessage, including proposals and the UpdatePath. After the header, a
// PrivateMessage is ciphertext. ParseHeader makes no copy.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported.
func ParseHeader(msg []byte) (Header, error) {
	if err := checkSize("MLSMessage", msg, MaxMessageSize); err != nil {
		return Header{}, err
	}
	var h Header
	r := newReader("MLSMessage", msg)
	h.WireFormat = r.mlsMessage()
	switch {
	case r.err != nil:
	case h.WireFormat == WireFormatPrivateMessage:
		r.privateMessage(&h)
	case h.WireFormat == WireFormatPublicMessage && len(msg) > MaxCommitSize: // checked before its parts are read
		return Header{}, tooLarge("PublicMessage", len(msg), MaxCommitSize)
	case h.WireFormat == WireFormatPublicMessage:
		r.publicMessage(&h)
	default:
		r.malformed("wire_format", "neither PublicMessage nor PrivateMessage but "+h.WireFormat.String())
	}
	if err := r.finish(); err != nil {
		return Header{}, err
	}
	if most := maxHandshakeSize(h.ContentType); h.ContentType != ContentTypeApplication && len(msg) > most {
		return Header{}, &ParseError{Object: h.WireFormat.String(), Reason: "a handshake of " + sizes(len(msg), most),
			Kind: ErrTooLarge}
	}
	return h, nil
}

// mlsMessage reads the start of an MLSMessage, up to and including its wire_format.
func (r *reader) mlsMessage() WireFormat {
	r.in = place{"MLSMessage", "6"}
	r.version()
	return WireFormat(r.u16("wire_format"))
}

// privateMessage reads a PrivateMessage (§6.3) into h.
func (r *reader) privateMessage(h *Header) {
	r.object = "PrivateMessage"
	r.in = place{"PrivateMessage", "6.3"}
	h.GroupID = r.groupID()
	h.Epoch = r.epoch()
	h.ContentType = r.contentType()
	r.opaque("authenticated_data")
	r.opaque("encrypted_sender_data")
	r.opaque("ciphertext")
}

func (r *reader) contentType() ContentType {
	c := ContentType(r.u8("content_type"))
	if c < ContentTypeApplication || c > ContentTypeCommit {
		r.malformed("content_type", "unknown value "+strconv.Itoa(int(c)))
	}
	return c
}

// publicMessage reads a PublicMessage (§6.2) into h. It also stores the parts in r.into unless that
// is nil.
func (r *reader) publicMessage(h *Header) {
	var parts handshake
	r.object = "PublicMessage"
	start := r.s
	var opaque bool
	parts.authenticatedData, opaque = r.framedContent(h)
	if opaque {
		r.opaqueProposal(h, start, &parts)
	} else {
		r.authData(h, start, &parts)
	}
	if r.into != nil {
		parts.proposals, parts.path = r.into.proposals, r.into.path
		*r.into = parts
	}
}

// authData reads the fields after a FramedContent in a PublicMessage (§6.1, §6.2). start is where
// the FramedContent began.
func (r *reader) authData(h *Header, start cryptobyte.String, parts *handshake) {
	parts.content = r.since(start)
	r.in = place{"FramedContentAuthData", "6.1"}
	parts.signature = r.opaque("signature")
	parts.signed = r.since(start)
	if h.ContentType == ContentTypeCommit {
		parts.confirmationTag = r.opaque("confirmation_tag")
	}
	r.in = place{"PublicMessage", "6.2"}
	if h.SenderType == SenderTypeMember {
		parts.membershipTag = r.opaque("membership_tag")
	}
}

// framedContent reads a FramedContent (§6) into h and returns its authenticated_data. It reports
// whether the content is an opaque proposal. It reads only the type of an opaque proposal.
func (r *reader) framedContent(h *Header) (authenticatedData []byte, opaque bool) {
	r.in = place{"FramedContent", "6"}
	h.GroupID = r.groupID()
	h.Epoch = r.epoch()
	r.sender(h)
	authenticatedData = r.opaque("authenticated_data")
	h.ContentType = r.contentType()
	r.checkSender(h)
	if r.err != nil {
		return nil, false
	}
	switch h.ContentType {
	case ContentTypeApplication:
		r.opaque("application_data")
	case ContentTypeProposal:
		var t ProposalType
		t, opaque = r.proposal()
		r.checkProposer(h.SenderType, t)
	case ContentTypeCommit:
		r.commit()
	}
	return authenticatedData, opaque && r.err == nil
}

// sender reads a Sender (§6) into h.
func (r *reader) sender(h *Header) {
	h.SenderType = SenderType(r.u8("sender.sender_type"))
	switch h.SenderType {
	case SenderTypeMember:
		h.Sender = r.u32("sender.leaf_index")
	case SenderTypeExternal:
		h.Sender = r.u32("sender.sender_index")
	case SenderTypeNewMemberProposal, SenderTypeNewMemberCommit:
	default:
		r.malformed("sender.sender_type", "unknown value "+strconv.Itoa(int(h.SenderType)))
	}
}

// checkSender refuses content that its kind of sender cannot send (§6.1).
func (r *reader) checkSender(h *Header) {
	var only ContentType
	switch h.SenderType {
	case SenderTypeExternal, SenderTypeNewMemberProposal:
		only = ContentTypeProposal
	case SenderTypeNewMemberCommit:
		only = ContentTypeCommit
	default:
		return
	}
	if h.ContentType != only {
		r.in.section = "6.1"
		r.malformed("content_type", h.ContentType.String()+" from sender "+h.SenderType.String())
	}
}

// checkProposer refuses a proposal that its kind of sender cannot make (§6.1,
// §12.1.8).
func (r *reader) checkProposer(s SenderType, t ProposalType) {
	ok := true
	switch s {
	case SenderTypeNewMemberProposal:
		ok = t == ProposalAdd
	case SenderTypeExternal:
		ok = t != ProposalUpdate && t != ProposalExternalInit && t != ProposalSelfRemove
	}
	if r.err == nil && !ok {
		r.in.section = "12.1.8"
		r.malformed("proposal", "of a type that "+s.String()+" cannot send")
	}
}
