package mls

import (
	"testing"
)

// TestPropose judges proposals alone, as the commit of another member that contains them (T13). The
// same proposals in a commit get the same verdict.
func TestPropose(t *testing.T) {
	t.Parallel()
	listsTypes := func(_ int, s *keyPackageSpec) { s.capProposals = []uint16{uint16(ProposalSelfRemove), 0xf001} }
	service := newSpec(t, SuiteX25519AES128)
	g := newGroupSpecWith(t, SuiteX25519AES128, 4, listsTypes,
		ext(ExtensionExternalSenders, vec(vec(service.sigKey), basic("did:web:service"))...))
	of := func(leaf uint32, proposal []byte) []byte {
		return proposeAs(t, g, g.members[leaf], member(leaf), proposal)
	}
	twice := updateOf(t, g, 2)
	for name, c := range map[string]struct {
		proposal []byte
		want     error
		field    string
	}{
		"Update":                   {of(2, twice), nil, ""},
		"Remove":                   {of(2, removeOf(1)[1:]), nil, ""},
		"Remove of the own leaf":   {of(2, removeOf(2)[1:]), nil, ""},
		"SelfRemove":               {of(2, u16(10)), nil, ""},
		"Add":                      {of(2, addOf(t, newSpec(t, g.suite))[1:]), nil, ""},
		"PSK":                      {of(2, pskProposal(32, "nobody's")[1:]), nil, ""},
		"ReInit":                   {of(2, reInitProposal[1:]), nil, ""},
		"GroupContextExtensions":   {of(2, contextProposal()[1:]), nil, ""},
		"custom":                   {of(2, u16(0xf001)), ErrUnsupported, "Proposal"},
		"external":                 {proposeAs(t, g, service, cat(u8(2), u32(0)), removeOf(1)[1:]), nil, ""},
		"Remove of a blank leaf":   {of(2, removeOf(9)[1:]), ErrMalformed, "Remove.removed"},
		"Update of another's leaf": {of(2, updateOf(t, g, 1)), ErrBadSignature, "LeafNode.signature"},
		"Update with a used key": {of(2, withSource(t, g, 2, g.members[1].encKey)), ErrMalformed,
			"LeafNode.encryption_key"},
		"PSK of a wrong size": {of(2, pskProposal(31, "x")[1:]), ErrMalformed, "PreSharedKeyID.psk_nonce"},
		"ExternalInit":        {of(2, cat(u16(6), vec(newKEMOutput(t, g.suite)))), ErrMalformed, "Commit.proposals"},
		"an extension that nobody supports": {of(2, contextProposal(ext(0xf00d))[1:]), ErrMalformed,
			"Capabilities.extensions"},
		"a type that nobody supports": {of(2, u16(0xf002)), ErrMalformed, "Capabilities.proposals"},

		"another's signature": {proposeAs(t, g, g.members[1], member(2), removeOf(1)[1:]), ErrBadSignature,
			"FramedContentAuthData.signature"},
		"from a blank leaf": {proposeAs(t, g, g.members[1], member(9), removeOf(1)[1:]), ErrMalformed,
			"Commit.proposals"},
	} {
		m, byRef := proposalOf(t, g, c.proposal)
		change, err := g.group.Propose(m)
		if wantError(t, err, c.want, c.field); t.Failed() {
			t.Fatal(name)
		}
		if err == nil && change.Next.Epoch != g.group.Epoch+1 {
			t.Errorf("%s: %+v", name, change.Next)
		}
		if err != nil && m.Proposal.Type != 0xf002 {
			continue // what is malformed cannot be built into a commit's path
		}
		commit := commitSpec{proposals: [][]byte{byRef}, pending: []*ProposalMessage{m}, noPath: err != nil}
		_, byCommit := g.group.Apply(must(ParseCommit(commit.build(t, g)))(t), m)
		if (byCommit == nil) != (err == nil) {
			t.Errorf("%s: alone %v, in a commit %v", name, err, byCommit)
		}
	}
}

// withSource returns an Update of a leaf with a given encryption key.
func withSource(t testing.TB, g *groupSpec, leaf uint32, key []byte) []byte {
	t.Helper()
	s := *g.members[leaf]
	s.source, s.encKey = 2, key
	return cat(u16(2), s.leafIn(t, g.group.GroupID, leaf, nil))
}

// TestProposeBeside: two proposals that one commit cannot contain are not both accepted, so that a
// member whose library commits all that is pending is not stopped by a pair (T13).
func TestProposeBeside(t *testing.T) {
	t.Parallel()
	lists := func(_ int, s *keyPackageSpec) { s.capProposals = []uint16{uint16(ProposalSelfRemove)} }
	g := newGroupSpecWith(t, SuiteX25519AES128, 4, lists)
	of := func(leaf uint32, proposal []byte) *ProposalMessage {
		m, _ := proposalOf(t, g, proposeAs(t, g, g.members[leaf], member(leaf), proposal))
		return m
	}
	forged, _ := proposalOf(t, g, proposeAs(t, g, g.members[1], member(2), u16(10)))
	update := func() *ProposalMessage { return of(2, updateOf(t, g, 2)) }
	for name, c := range map[string]struct {
		pending, m *ProposalMessage
		want       error
	}{
		"two Updates":                {update(), update(), ErrMalformed},
		"Updates of two":             {of(1, updateOf(t, g, 1)), update(), nil},
		"SelfRemove after Update":    {update(), of(2, u16(10)), nil},
		"Remove after Update":        {update(), of(1, removeOf(2)[1:]), nil},
		"Update after SelfRemove":    {of(2, u16(10)), update(), ErrMalformed},
		"SelfRemove after Remove":    {of(1, removeOf(2)[1:]), of(2, u16(10)), ErrMalformed},
		"Removes of two":             {of(1, removeOf(2)[1:]), of(1, removeOf(3)[1:]), nil},
		"one PSK twice":              {of(1, pskProposal(32, "x")[1:]), of(2, pskProposal(32, "x")[1:]), ErrMalformed},
		"two PSKs":                   {of(1, pskProposal(32, "x")[1:]), of(2, pskProposal(32, "y")[1:]), nil},
		"two GroupContextExtensions": {of(1, contextProposal()[1:]), of(2, contextProposal()[1:]), ErrMalformed},
		"after a forged one":         {forged, update(), nil},
	} {
		_, err := g.group.Propose(c.m, c.pending)
		if wantError(t, err, c.want, map[bool]string{true: "Proposal"}[c.want != nil]); t.Failed() {
			t.Fatal(name)
		}
	}
	// Nobody else can commit what changes the only leaf.
	alone := newGroupSpecWith(t, SuiteX25519AES128, 1, lists)
	for _, proposal := range [][]byte{u16(10), removeOf(0)[1:], updateOf(t, alone, 0)} {
		m, _ := proposalOf(t, alone, proposeAs(t, alone, alone.members[0], member(0), proposal))
		_, err := alone.group.Propose(m)
		wantError(t, err, ErrMalformed, "Proposal")
	}
}
