package mls

// handshake is what there is in a PublicMessage beside its header. All slices
// alias the message.
type handshake struct {
	authenticatedData []byte
	content           []byte // FramedContent
	signed            []byte // FramedContent and its signature
	signature         []byte
	confirmationTag   []byte // commits only
	membershipTag     []byte // of members only; cannot be verified without secrets
	proposals         []Proposal
	path              *updatePath
}

// Commit is a commit sent as a PublicMessage, so that all of it can be read
// (RFC 9420 §12.4). It aliases the message. Apply says whether it is valid.
type Commit struct {
	Header
	AuthenticatedData []byte
	Proposals         []Proposal
	HasPath           bool // an UpdatePath gives its sender a new leaf
	ConfirmationTag   []byte

	parts handshake
}

// ProposalMessage is a proposal sent as a PublicMessage, on its own, for a later
// commit to refer to (RFC 9420 §12.1). It aliases the message.
type ProposalMessage struct {
	Header
	AuthenticatedData []byte
	Proposal          Proposal

	parts handshake
}

// ParseCommit reads an MLSMessage that holds a PublicMessage with a commit, and
// checks structure alone.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported (a PrivateMessage, whose
// content nobody but a member can see).
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

// ParseProposal reads an MLSMessage that holds a PublicMessage with a proposal,
// and checks structure alone.
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
	if err := checkSize(object, msg, MaxCommitSize); err != nil {
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

// tbs returns the parts of FramedContentTBS (§6.1) with the given GroupContext,
// which is empty for senders who do not sign it.
func (p *handshake) tbs(context []byte) [][]byte {
	return [][]byte{{0, byte(VersionMLS10), 0, byte(WireFormatPublicMessage)}, p.content, context}
}

// authenticated returns wire_format, FramedContent and signature: a commit's
// ConfirmedTranscriptHashInput (§8.2), and a proposal's AuthenticatedContent (§6).
func (p *handshake) authenticated() []byte {
	return append([]byte{0, byte(WireFormatPublicMessage)}, p.signed...)
}
