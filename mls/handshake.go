package mls

// handshake holds the parts of a PublicMessage other than its header. All slices alias the message.
type handshake struct {
	authenticatedData []byte
	content           []byte // FramedContent
	signed            []byte // FramedContent and its signature
	signature         []byte
	confirmationTag   []byte // commits only
	membershipTag     []byte // members only; only holders of a secret can verify it
	proposals         []Proposal
	path              *updatePath

	// If the message has an opaque proposal, content, signed, signature and membershipTag are not
	// set: see readings. opaque is then the message from its FramedContent on. typeEnd is where the
	// proposal's type ends in opaque.
	opaque  []byte
	typeEnd int
}

// Commit is a commit sent as a PublicMessage (RFC 9420 §12.4), which is not encrypted. It aliases
// the message. Apply says whether it is valid.
type Commit struct {
	Header
	AuthenticatedData []byte
	Proposals         []Proposal
	HasPath           bool // the commit has an UpdatePath, with a new leaf of its sender
	ConfirmationTag   []byte

	parts handshake
}

// ProposalMessage is a single proposal sent as a PublicMessage (RFC 9420 §12.1). A later commit can
// refer to it. It aliases the message.
type ProposalMessage struct {
	Header
	AuthenticatedData []byte
	Proposal          Proposal

	parts handshake
}

// ParseCommit parses an MLSMessage with a PublicMessage that holds a commit. It checks structure
// only.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported (a PrivateMessage, which only members can
// decrypt).
func ParseCommit(msg []byte) (*Commit, error) {
	h, parts, err := parseHandshake("Commit", msg, ContentTypeCommit)
	if err != nil {
		return nil, err
	}
	return &Commit{
		Header:            h,
		AuthenticatedData: parts.authenticatedData,
		Proposals:         parts.proposals,
		HasPath:           parts.path != nil,
		ConfirmationTag:   parts.confirmationTag,
		parts:             parts,
	}, nil
}

// ParseProposal parses an MLSMessage with a PublicMessage that holds a proposal. It checks
// structure only.
//
// Errors: as ParseCommit.
func ParseProposal(msg []byte) (*ProposalMessage, error) {
	h, parts, err := parseHandshake("Proposal", msg, ContentTypeProposal)
	if err != nil {
		return nil, err
	}
	return &ProposalMessage{
		Header:            h,
		AuthenticatedData: parts.authenticatedData,
		Proposal:          parts.proposals[0],
		parts:             parts,
	}, nil
}

func parseHandshake(object string, msg []byte, want ContentType) (h Header, parts handshake, err error) {
	if err := checkSize(object, msg, maxHandshakeSize(want)); err != nil {
		return h, parts, err
	}
	r := newReader(object, msg)
	r.into = &parts
	h.WireFormat = r.mlsMessage()
	switch {
	case r.err != nil:
	case h.WireFormat == WireFormatPublicMessage:
		r.publicMessage(&h)
	case h.WireFormat == WireFormatPrivateMessage:
		r.fail(ErrUnsupported, "wire_format", "PrivateMessage: encrypted")
	default:
		r.malformed("wire_format", "not PublicMessage but "+h.WireFormat.String())
	}
	if r.err == nil && h.ContentType != want {
		r.in = place{"FramedContent", "6"}
		r.malformed("content_type", "not "+want.String()+" but "+h.ContentType.String())
	}
	if err := r.finish(); err != nil {
		return Header{}, handshake{}, err
	}
	return h, parts, nil
}

// tbs returns the parts of FramedContentTBS (§6.1). context is the encoded GroupContext. It is
// empty for senders that do not sign the GroupContext.
func (p *handshake) tbs(context []byte) [][]byte {
	return [][]byte{{0, byte(VersionMLS10), 0, byte(WireFormatPublicMessage)}, p.content, context}
}

// authenticated returns wire_format, FramedContent and signature: a commit's
// ConfirmedTranscriptHashInput (§8.2), and a proposal's AuthenticatedContent (§6).
func (p *handshake) authenticated() []byte {
	return append([]byte{0, byte(WireFormatPublicMessage)}, p.signed...)
}
