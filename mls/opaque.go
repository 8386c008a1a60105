package mls

import (
	"bytes"
	"crypto/elliptic"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// A proposal of a type that this package does not know is opaque: nothing shows where its content
// ends (RFC 9420 §12.1). In a commit, an opaque proposal hides the rest of the list of proposals,
// and nothing else, because the list has a length.
//
// In a PublicMessage, an opaque proposal is followed by a signature and a membership_tag. This
// package finds them from the end of the message. The suite gives the length of the tag, and the
// length of an EdDSA or ML-DSA signature. The DER encoding gives the length of an ECDSA signature.
// There may be several readings, because the content can end with bytes that look like the start of
// a signature. The reading whose signature verifies is the right one. All readings have the same
// ProposalRef, because the ProposalRef covers content and signature together.

// opaqueProposal reads the rest of the message: the content of an opaque proposal, its signature
// and its membership_tag. start is where the FramedContent began.
func (r *reader) opaqueProposal(h *Header, start cryptobyte.String, parts *handshake) {
	parts.opaque = start
	parts.typeEnd = len(start) - len(r.s)
	for c := range suites {
		if len(parts.readings(c, h.SenderType)) > 0 {
			r.s = nil
			return
		}
	}
	r.in = place{"FramedContentAuthData", "6.1"}
	r.malformed("signature", "the proposal is of an unknown type, and no signature with a membership_tag follows it")
}

// readings returns all ways to read the message as a message of the suite. If its proposal is not
// opaque, there is one: the message itself.
func (p *handshake) readings(suite CipherSuite, sender SenderType) (all []handshake) {
	if p.opaque == nil {
		return []handshake{*p}
	}
	params := suite.params()
	signed, read := p.opaque, *p
	if sender == SenderTypeMember {
		var ok bool
		if signed, read.membershipTag, ok = cutVector(signed, p.typeEnd, suite.hashSize()); !ok {
			return nil
		}
	}
	read.signed = signed
	shortest, longest := params.sign.signatureSizes()
	for size := shortest; size <= longest; size++ {
		content, signature, ok := cutVector(signed, p.typeEnd, size)
		if ok && (params.sign.curve == nil || isDER(signature)) {
			read.content, read.signature = content, signature
			all = append(all, read)
		}
	}
	return all
}

// cutVector cuts an opaque<V> of size bytes off the end of b, but leaves at least the first keep
// bytes.
func cutVector(b []byte, keep, size int) (before, content []byte, ok bool) {
	length := appendVarint(nil, size)
	at := len(b) - size - len(length)
	if at < keep || !bytes.Equal(b[at:at+len(length)], length) {
		return nil, nil, false
	}
	return b[:at:at], b[len(b)-size:], true
}

// signatureSizes returns the shortest and the longest signature, in bytes. An ECDSA signature is a
// SEQUENCE of two INTEGERs. Each INTEGER has up to one byte more than a coordinate.
func (s *signature) signatureSizes() (shortest, longest int) {
	if s.curve == nil {
		return s.size, s.size
	}
	return 8, 3 + 2*(3+coordinateSize(s.curve))
}

func coordinateSize(curve elliptic.Curve) int { return (curve.Params().BitSize + 7) / 8 }

// isDER reports whether b is a SEQUENCE of two INTEGERs in DER.
func isDER(b cryptobyte.String) bool {
	var sequence, r, s cryptobyte.String
	return b.ReadASN1(&sequence, asn1.SEQUENCE) && b.Empty() &&
		sequence.ReadASN1(&r, asn1.INTEGER) && sequence.ReadASN1(&s, asn1.INTEGER) && sequence.Empty()
}
