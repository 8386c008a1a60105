package mls

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// proposalOf parses a PublicMessage with a proposal, and returns it with an entry of a commit that
// refers to it.
func proposalOf(t testing.TB, g *groupSpec, msg []byte) (m *ProposalMessage, byRef []byte) {
	t.Helper()
	m = must(ParseProposal(msg))(t)
	return m, cat(u8(2), vec(m.ref(g.suite)))
}

// TestSelfRemove commits SelfRemoves: by reference, in members' and in external commits (M1).
func TestSelfRemove(t *testing.T) {
	t.Parallel()
	capable := func(_ int, s *keyPackageSpec) { s.capProposals = []uint16{uint16(ProposalSelfRemove)} }
	for _, suite := range supportedSuites {
		g := newGroupSpecWith(t, suite, 4, capable)
		two, byTwo := proposalOf(t, g, proposeAs(t, g, g.members[2], member(2), u16(10)))
		three, byThree := proposalOf(t, g, proposeAs(t, g, g.members[3], member(3), u16(10)))
		own, byOwn := proposalOf(t, g, proposeAs(t, g, g.members[0], member(0), u16(10)))
		forged, byForged := proposalOf(t, g, proposeAs(t, g, g.members[1], member(2), u16(10)))
		update, byUpdate := proposalOf(t, g, proposeAs(t, g, g.members[2], member(2), updateOf(t, g, 2)))
		all := []*ProposalMessage{two, three, own, forged, update}
		externalInit := byValue(cat(u16(6), vec(newKEMOutput(t, suite))))
		joiner := newSpec(t, suite)
		for name, c := range map[string]struct {
			spec    commitSpec
			want    error
			field   string
			removes []uint32
		}{
			"by reference":    {commitSpec{proposals: [][]byte{byTwo}}, nil, "", []uint32{2}},
			"two":             {commitSpec{proposals: [][]byte{byThree, byTwo}}, nil, "", []uint32{3, 2}},
			"beside a Remove": {commitSpec{proposals: [][]byte{byThree, removeOf(2)}}, nil, "", []uint32{3, 2}},
			"no path":         {commitSpec{noPath: true, proposals: [][]byte{byTwo}}, ErrMalformed, "Commit.path", nil},
			"the committer's": {commitSpec{proposals: [][]byte{byOwn}}, ErrMalformed, "SelfRemove", nil},
			"forged": {commitSpec{proposals: [][]byte{byForged}}, ErrBadSignature,
				"FramedContentAuthData.signature", nil},
			"and Remove": {commitSpec{proposals: [][]byte{removeOf(2), byTwo}}, ErrMalformed, "SelfRemove", nil},
			"and Update": {commitSpec{proposals: [][]byte{byUpdate, byTwo}}, ErrMalformed, "SelfRemove", nil},
			"external": {commitSpec{external: joiner, proposals: [][]byte{externalInit, byThree, byTwo}}, nil, "",
				[]uint32{3, 2}},
			"external and Remove": {commitSpec{external: joiner, proposals: [][]byte{externalInit, byThree, removeOf(1)}}, nil,
				"", []uint32{3, 1}},
			"external and Update": {commitSpec{external: joiner, proposals: [][]byte{externalInit, byUpdate}}, ErrMalformed,
				"Commit.proposals", nil},
		} {
			if suite != SuiteX25519AES128 && name != "external" && name != "forged" {
				continue
			}
			c.spec.pending = all
			change, err := g.group.Apply(must(ParseCommit(c.spec.build(t, g)))(t), all...)
			if wantError(t, err, c.want, c.field); t.Failed() {
				t.Fatal(suite, name)
			}
			if err != nil {
				continue
			}
			checkChange(t, g.group, change)
			var removes []uint32
			for _, r := range change.Removes {
				removes = append(removes, r.Leaf)
				own := r.Leaf == 3 || slices.Equal(c.removes, []uint32{2}) || name == "two" || name == "external"
				if (r.By.DID == r.DID()) != own {
					t.Errorf("%s: the author of the removal of %d is %v", name, r.Leaf, r.By)
				}
			}
			if !slices.Equal(removes, c.removes) {
				t.Errorf("%s: removes %v", name, removes)
			}
		}
	}
}

// TestSelfRemoveSupport: all members that process the commit must list SelfRemove (M1, §12.2).
func TestSelfRemoveSupport(t *testing.T) {
	t.Parallel()
	g := newGroupSpecWith(t, SuiteX25519AES128, 4, func(i int, s *keyPackageSpec) {
		if i != 1 {
			s.capProposals = []uint16{uint16(ProposalSelfRemove)}
		}
	})
	m, byRef := proposalOf(t, g, proposeAs(t, g, g.members[2], member(2), u16(10)))
	apply := func(proposals ...[]byte) error {
		c := commitSpec{proposals: proposals, pending: []*ProposalMessage{m}}
		_, err := g.group.Apply(must(ParseCommit(c.build(t, g)))(t), m)
		return err
	}
	wantError(t, apply(byRef), ErrMalformed, "Capabilities.proposals")
	wantError(t, apply(byRef, removeOf(1)), nil, "")
}

// TestOpaqueProposal reads proposals of a type that the RFC does not define, in every suite: their
// header, their reference and their signature (M2).
func TestOpaqueProposal(t *testing.T) {
	t.Parallel()
	for _, suite := range supportedSuites {
		g := newGroupSpecWith(t, suite, 3, func(_ int, s *keyPackageSpec) { s.capProposals = []uint16{0xf001} })
		sender, tag := g.members[1], vec(make([]byte, suite.hashSize()))
		// Contents that end like the start of a signature have more than one reading.
		for _, body := range [][]byte{nil, []byte("a receipt"), tag, cat(vec(make([]byte, 64)), tag),
			cat(u8(8), []byte{0x30, 6, 2, 1, 1, 2, 1, 1})} {
			proposal := cat(u16(0xf001), body)
			framedContent := content(g.group.Epoch, member(1), ContentTypeProposal, proposal)
			signature := vec(sender.sign(t, "FramedContentTBS", cat(u16(1, 1), framedContent, g.group.Context())))
			msg := framed(1, cat(framedContent, signature, tag))
			m, byRef := proposalOf(t, g, msg)
			if !m.Proposal.Opaque || m.Proposal.Type != 0xf001 || m.Sender != 1 {
				t.Fatalf("%v: %+v", suite, m)
			}
			want := suite.refHash("MLS 1.0 Proposal Reference", cat(u16(1), framedContent, signature))
			if string(m.ref(suite)) != string(want) {
				t.Errorf("%v: ProposalRef differs", suite)
			}
			v := proposalVerifier{Group: g.group, signed: g.group.Context()}
			if err := v.verify(m); err != nil {
				t.Errorf("%v: %v", suite, err)
			}
			commit := must(ParseCommit((&commitSpec{noPath: true, proposals: [][]byte{byRef}}).build(t, g)))(t)
			_, err := g.group.Apply(commit, m)
			wantError(t, err, ErrUnsupported, "Commit.proposals")
			if err == nil || !strings.Contains(err.Error(), "type") {
				t.Errorf("%v: %v", suite, err)
			}
			// Another member's signature is refused, also for a type that is not known.
			other := vec(g.members[2].sign(t, "FramedContentTBS", cat(u16(1, 1), framedContent, g.group.Context())))
			forged, byRef := proposalOf(t, g, framed(1, cat(framedContent, other, tag)))
			commit = must(ParseCommit((&commitSpec{noPath: true, proposals: [][]byte{byRef}}).build(t, g)))(t)
			_, err = g.group.Apply(commit, forged)
			wantError(t, err, ErrBadSignature, "FramedContentAuthData.signature")
		}
	}
}

// TestOpaqueReadings bounds how often a signature of an opaque proposal is verified.
func TestOpaqueReadings(t *testing.T) {
	t.Parallel()
	der := func(r, s []byte) []byte {
		ints := cat(u8(2), vec(r), u8(2), vec(s))
		return cat(u8(0x30), vec(ints))
	}
	inner := der([]byte{1}, []byte{1})
	for range 3 { // a signature at the end of the other's s
		inner = der([]byte{1}, cat([]byte{1}, vec(inner)))
	}
	msg := framed(1, cat(content(1, member(0), ContentTypeProposal, u16(0xf001)), vec(inner), testTag))
	m := must(ParseProposal(msg))(t)
	if n := len(m.parts.readings(SuiteP256AES128, SenderTypeMember)); n < 2 || n > 4 {
		t.Errorf("%d readings", n)
	}
	if n := len(m.parts.readings(SuiteX25519AES128, SenderTypeMember)); n != 0 {
		t.Errorf("%d readings of suite 1", n)
	}
}

// TestReInitOfCommit finds a ReInit by value and by reference, without knowing the group (M3).
func TestReInitOfCommit(t *testing.T) {
	t.Parallel()
	g := newGroupSpec(t, SuiteX25519AES128, 3)
	m, byRef := proposalOf(t, g, proposeAs(t, g, g.members[1], member(1), reInitProposal[1:]))
	parse := func(entries ...[]byte) *Commit {
		return must(ParseCommit((&commitSpec{noPath: true, proposals: entries}).build(t, g)))(t)
	}
	for name, re := range map[string]*ReInit{
		"by value":     parse(reInitProposal).ReInit(g.suite),
		"by reference": parse(byRef).ReInit(g.suite, m),
	} {
		if re == nil || string(re.GroupID) != "next" || re.Version != 1 || re.CipherSuite != 1 {
			t.Errorf("%s: %+v", name, re)
		}
	}
	if parse(byRef).ReInit(g.suite) != nil || parse(removeOf(1)).ReInit(g.suite, m) != nil {
		t.Error("found where there is none")
	}
}

// TestExternalProposer: a proposal of an external sender names its account (M5, §12.1.8.1).
func TestExternalProposer(t *testing.T) {
	t.Parallel()
	service, other := newSpec(t, SuiteX25519AES128), newSpec(t, SuiteX25519AES128)
	senders := ext(ExtensionExternalSenders,
		vec(vec(other.sigKey), basic("did:web:other"), vec(service.sigKey), basic("did:web:service#bot"))...)
	g := newGroupSpec(t, SuiteX25519AES128, 3, senders)
	propose := func(s *keyPackageSpec, index uint32, proposal []byte) *ProposalMessage {
		return must(ParseProposal(proposeAs(t, g, s, cat(u8(2), u32(index)), proposal)))(t)
	}
	for name, c := range map[string]struct {
		m     *ProposalMessage
		did   string
		want  error
		field string
	}{
		"good":           {propose(service, 1, removeOf(1)[1:]), "did:web:service", nil, ""},
		"custom":         {propose(service, 1, u16(0xf001)), "did:web:service", nil, ""},
		"another's key":  {propose(service, 0, removeOf(1)[1:]), "", ErrBadSignature, "FramedContentAuthData.signature"},
		"a third sender": {propose(service, 2, removeOf(1)[1:]), "", ErrMalformed, "Commit.proposals"},
	} {
		did, err := g.group.ExternalProposer(c.m)
		if wantError(t, err, c.want, c.field); did != c.did {
			t.Errorf("%s: %q, %v", name, did, err)
		}
	}
}

// TestRefusalsSayWhatToDo: where a known library is the cause, the refusal says what to do (M8).
func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	bare := newGroupInfo()
	bare.own = ext(ExtensionExternalPub, append([]byte{0x20}, make([]byte, 31)...)...)
	_, externalPub := ParseGroupInfo(bare.build())
	extra := newGroupInfo()
	extra.own = ext(ExtensionExternalPub, cat(vec(make([]byte, 32)), u8(0), u8(0))...)
	_, trailing := ParseGroupInfo(extra.build())
	compressed := newSpec(t, SuiteP256AES128)
	compressed.sigKey = cat(u8(2), compressed.sigKey[1:33])
	endless := newSpec(t, SuiteX25519AES128)
	endless.notAfter = 1<<63 - 1
	long := newSpec(t, SuiteX25519AES128)
	long.notAfter = long.notBefore + uint64(MaxLifetime/time.Second) + 1
	for _, c := range []struct {
		err  error
		want string
	}{
		{externalPub, "GroupInfo malformed: ExternalPub.external_pub: 32 bytes without their length, as ts-mls writes " +
			"them; " +
			"write opaque external_pub<V>: the length, then the key (RFC 9420 §12.4.3.2)"},
		{trailing, "GroupInfo malformed: ExternalPub.external_pub: 2 bytes after the key (RFC 9420 §12.4.3.2)"},
		{mustParse(t, compressed.build(t)).Check(testNow),
			"KeyPackage malformed: LeafNode.signature_key: 33 bytes: a compressed point, " +
				"as ts-mls writes it; write the uncompressed point of 65 bytes (RFC 9420 §5.1.1)"},
		{mustParse(t, endless.build(t)).Check(testNow), "KeyPackage lifetime too long: Lifetime: more than 7261200 seconds " +
			"(84 days and one hour) from not_before to not_after: it has no end, which is ts-mls's default; set a lifetime " +
			"(RFC 9420 §7.2)"},
		{mustParse(t, long.build(t)).Check(testNow), "KeyPackage lifetime too long: Lifetime: more than 7261200 seconds " +
			"(84 days and one hour) from not_before to not_after (RFC 9420 §7.2)"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", c.err, c.want)
		}
	}
}
