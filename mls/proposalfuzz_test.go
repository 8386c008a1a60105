package mls

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// proposeAs returns a PublicMessage with a proposal for the group. s signs it as a sender of the
// given kind does.
func proposeAs(t testing.TB, g *groupSpec, s *keyPackageSpec, sender, proposal []byte) []byte {
	t.Helper()
	body := content(g.group.Epoch, sender, ContentTypeProposal, proposal)
	tbs, tag := cat(u16(1, 1), body), []byte(nil)
	if SenderType(sender[0]) == SenderTypeMember {
		tbs, tag = cat(tbs, g.group.Context()), testTag
	}
	return framed(1, cat(body, vec(s.sign(t, "FramedContentTBS", tbs)), tag))
}

// updateOf returns an Update proposal of a member, with a valid signature.
func updateOf(t testing.TB, g *groupSpec, leaf uint32) []byte {
	t.Helper()
	s := *g.members[leaf]
	s.source, s.encKey = 2, newHPKEKey(t, g.suite)
	return cat(u16(2), s.leafIn(t, g.group.GroupID, leaf, nil))
}

// FuzzProposal checks that ParseProposal and ParseHeader accept the same proposals.
func FuzzProposal(f *testing.F) {
	for _, p := range testProposals(f) {
		f.Add(framed(1, cat(content(4, member(0), ContentTypeProposal, p), testTag, testTag)))
	}
	p := testProposals(f)
	f.Add(framed(1, cat(content(4, cat(u8(2), u32(1)), ContentTypeProposal, p["remove"]), testTag)))
	f.Add(framed(1, cat(content(4, u8(3), ContentTypeProposal, p["add"]), testTag)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, ok := checkParse(t, "Proposal", data, ParseProposal, cmp.Comparer(func(a, b *ProposalMessage) bool {
			return (a == nil) == (b == nil) && (a == nil || cmp.Equal(a.Header, b.Header) && a.Proposal.Type == b.Proposal.Type)
		}))
		h, err := ParseHeader(data)
		if isProposal := err == nil && h.WireFormat == WireFormatPublicMessage &&
			h.ContentType == ContentTypeProposal; isProposal != ok {
			t.Fatalf("ParseHeader: %+v, %v", h, err)
		}
		if ok && !cmp.Equal(h, m.Header) {
			t.Fatalf("two headers: %+v and %+v", h, m.Header)
		}
	})
}

// FuzzApply mutates a commit and a pending proposal. Their alleged senders then sign them, and the
// commit refers to the proposal. So Apply gets valid signatures, except those of leaves and
// KeyPackages. A change that it accepts must lead from one valid tree to another.
func FuzzApply(f *testing.F) {
	signer := newSpec(f, SuiteX25519AES128)
	joiner := newSpec(f, SuiteX25519AES128)
	senders := ext(ExtensionExternalSenders, vec(vec(signer.sigKey), basic("did:web:service"))...)
	g := newGroupSpecWith(f, SuiteX25519AES128, 5, func(_ int, s *keyPackageSpec) {
		s.capProposals = []uint16{uint16(ProposalSelfRemove)}
	}, senders)
	byRef := cat(u8(2), vec(make([]byte, 32)))
	keys := []*keyPackageSpec{signer, joiner}
	for _, s := range g.members {
		keys = append(keys, s)
	}
	proposals := [][]byte{
		proposeAs(f, g, g.members[2], member(2), updateOf(f, g, 2)),
		proposeAs(f, g, g.members[1], member(1), cat(u16(3), u32(3))),
		proposeAs(f, g, g.members[1], member(1), pskProposal(32, "id")[1:]),
		proposeAs(f, g, g.members[1], member(1), reInitProposal[1:]),
		proposeAs(f, g, g.members[2], member(2), u16(10)),
		proposeAs(f, g, g.members[2], member(2), cat(u16(0xf001), []byte("anything"))),
		proposeAs(f, g, signer, cat(u8(2), u32(0)), cat(u16(3), u32(4))),
		proposeAs(f, g, signer, cat(u8(2), u32(0)), contextProposal()[1:]),
		proposeAs(f, g, joiner, u8(3), addOf(f, joiner)[1:]),
	}
	for _, p := range proposals {
		m := must(ParseProposal(p))(f)
		ref := cat(u8(2), vec(m.ref(g.suite)))
		f.Add((&commitSpec{proposals: [][]byte{ref}, pending: []*ProposalMessage{m}}).build(f, g), p)
		f.Add((&commitSpec{proposals: [][]byte{ref, removeOf(1)}, pending: []*ProposalMessage{m}}).build(f, g), p)
		f.Add((&commitSpec{noPath: true, proposals: [][]byte{byRef}}).build(f, g), p)
	}
	externalInit := byValue(cat(u16(6), vec(newKEMOutput(f, g.suite))))
	f.Add((&commitSpec{external: joiner, proposals: [][]byte{externalInit, removeOf(4)}}).build(f, g), proposals[0])
	tree := g.group.Tree.Encode()
	f.Fuzz(func(t *testing.T, commit, proposal []byte) {
		m, err := ParseProposal(proposal)
		if err != nil {
			return
		}
		m = must(ParseProposal(resign(t, g, keys, proposal, m.Header, &m.parts)))(t)
		commit = bytes.Clone(commit)
		c, err := ParseCommit(commit)
		if err != nil {
			return
		}
		for _, p := range c.Proposals {
			copy(p.Reference, m.ref(g.suite))
		}
		c = must(ParseCommit(resign(t, g, keys, commit, c.Header, &c.parts)))(t)
		change, err := g.group.Apply(c, m)
		checkKind(t, err)
		if err == nil {
			checkChange(t, g.group, change)
		}
		if !bytes.Equal(g.group.Tree.Encode(), tree) {
			t.Fatal("the group's tree was modified")
		}
	})
}

// resign returns the message with a new signature of its sender. It returns the message unchanged
// if the sender's key is not known.
func resign(t testing.TB, g *groupSpec, keys []*keyPackageSpec, msg []byte, h Header, parts *handshake) []byte {
	t.Helper()
	var key, context []byte
	switch h.SenderType {
	case SenderTypeMember:
		if l := g.group.Tree.leaf(h.Sender); l != nil {
			key = l.signatureKey
		}
		context = g.group.Context()
	case SenderTypeExternal:
		if keys := must(g.group.externalSenders())(t); int(h.Sender) < len(keys) {
			key = keys[h.Sender].key
		}
	case SenderTypeNewMemberProposal:
		key = parts.proposals[0].KeyPackage.SignatureKey
	case SenderTypeNewMemberCommit:
		if parts.path != nil {
			key = parts.path.leaf.signatureKey
		}
		context = g.group.Context()
	}
	if readings := parts.readings(g.suite, h.SenderType); len(readings) > 0 {
		parts = &readings[0]
	} else {
		return msg
	}
	for _, s := range keys {
		if bytes.Equal(s.sigKey, key) {
			end := msg[4+len(parts.content)+len(vec(parts.signature)):]
			return cat(msg[:4+len(parts.content)], vec(s.sign(t, "FramedContentTBS", cat(parts.tbs(context)...))), end)
		}
	}
	return msg
}
