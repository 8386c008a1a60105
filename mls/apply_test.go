package mls

import (
	"testing"
)

func pskProposal(nonce int, id string) []byte {
	return byValue(cat(u16(4), u8(1), vec([]byte(id)), vec(make([]byte, nonce))))
}

var reInitProposal = byValue(cat(u16(5), vec([]byte("next")), u16(1, 1), vec()))

func contextProposal(exts ...[]byte) []byte { return byValue(cat(u16(7), vec(exts...))) }

func TestApply(t *testing.T) {
	t.Parallel()
	for _, suite := range supportedSuites {
		t.Run(suite.String(), func(t *testing.T) {
			t.Parallel()
			sizes := []int{1, 2, 3, 4, 5, 8, 9}
			if suite > SuiteX25519ChaCha20 { // signatures cost many times more
				sizes = []int{1, 5}
			}
			for _, n := range sizes {
				testApply(t, newGroupSpec(t, suite, n), uint32(n))
			}
		})
	}
}

// testApply applies commits with joins and leaves to a group of n members, one after the other.
func testApply(t *testing.T, g *groupSpec, n uint32) {
	apply := func(name string, c *commitSpec) *Change {
		t.Helper()
		msg := c.build(t, g)
		commit := must(ParseCommit(msg))(t)
		change, err := g.group.Apply(commit)
		if err != nil {
			t.Fatalf("%d members: %s: %v", n, name, err)
		}
		checkChange(t, g.group, change)
		g.group = change.Next
		info := must(ParseGroupInfo(g.groupInfo(t, change.Committer)))(t)
		if err := change.Next.Matches(&info); err != nil {
			t.Errorf("%d members: %s: %v", n, name, err)
		}
		return change
	}
	carol, dave, erin := newSpec(t, g.suite), newSpec(t, g.suite), newSpec(t, g.suite)
	apply("empty", &commitSpec{})
	if c := apply("two adds", &commitSpec{proposals: [][]byte{addOf(t, carol), addOf(t, dave)}}); len(c.Adds) != 2 ||
		c.Adds[0].Leaf != n {
		t.Errorf("adds: %+v", c.Adds)
	}
	g.members[n], g.members[n+1] = carol, dave
	apply("from a new member", &commitSpec{sender: n})
	apply("psk alone", &commitSpec{noPath: true, proposals: [][]byte{pskProposal(g.suite.hashSize(), "id")}})
	// The external committer takes the leaf of a member that the same commit removes.
	joiner := *carol
	externalInit := byValue(cat(u16(6), vec(newKEMOutput(t, g.suite))))
	g.members[n] = &joiner
	c := apply("resync", &commitSpec{external: &joiner, proposals: [][]byte{externalInit, removeOf(n)}})
	if !c.External || c.Committer != n || len(c.Adds) != 1 || len(c.Removes) != 1 {
		t.Errorf("resync: %+v", c)
	}
	g.members[n+2] = erin
	if c := apply("join", &commitSpec{external: erin,
		proposals: [][]byte{externalInit, pskProposal(g.suite.hashSize(), "id")}}); c.Committer != n+2 {
		t.Errorf("join at %d", c.Committer)
	}
	c = apply("two removes and context",
		&commitSpec{proposals: [][]byte{removeOf(n + 2), contextProposal(), removeOf(n + 1)}})
	if len(c.Removes) != 2 || c.Removes[0].Leaf != n+2 || len(c.Updates) != 1 {
		t.Errorf("removes: %+v", c)
	}
	apply("last leaf", &commitSpec{proposals: [][]byte{removeOf(n)}})
	if c := apply("no path",
		&commitSpec{noPath: true, proposals: [][]byte{addOf(t, newSpec(t, g.suite))}}); len(c.Updates) != 0 {
		t.Errorf("updates: %+v", c.Updates)
	}
	if c := apply("reinit", &commitSpec{noPath: true, proposals: [][]byte{reInitProposal}}); c.ReInit == nil ||
		string(c.ReInit.GroupID) != "next" {
		t.Error("the change does not report ReInit")
	}
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	outsider := newSpec(t, SuiteX25519AES128)
	other := newSpec(t, SuiteX25519AES128)
	external := byValue(cat(u16(6), vec(newKEMOutput(t, SuiteX25519AES128))))
	broken := newSpec(t, SuiteX25519AES128).build(t)
	broken[len(broken)-1] ^= 1
	const list, path = "Commit.proposals", "Commit.path"
	first := func(b []byte) func([]byte) []byte { return func([]byte) []byte { return b } }
	with := func(p ...[]byte) commitSpec { return commitSpec{proposals: p} }
	join := func(p ...[]byte) commitSpec { return commitSpec{external: outsider, proposals: p} }
	required := ext(ExtensionRequiredCapabilities, cat(vec(u16(0x7777)), vec(), vec())...)
	for name, c := range map[string]struct {
		spec  commitSpec
		want  error
		field string
	}{
		"good": {commitSpec{}, nil, ""},
		"another group": {commitSpec{content: func(b []byte) []byte { b[1] ^= 1; return b }}, ErrMalformed,
			"FramedContent.group_id"},
		"another epoch": {commitSpec{content: func(b []byte) []byte { b[1+len(testGroup)+7] ^= 1; return b }},
			ErrMalformed, "FramedContent.epoch"},
		"forged": {commitSpec{signer: outsider}, ErrBadSignature, "FramedContentAuthData.signature"},
		"another's name": {commitSpec{content: func(b []byte) []byte { b[1+len(testGroup)+8+1+3] = 1; return b }},
			ErrBadSignature, "FramedContentAuthData.signature"},
		"blank sender": {commitSpec{content: func(b []byte) []byte { b[1+len(testGroup)+8+1+3] = 6; return b }},
			ErrMalformed, "FramedContent.sender"},
		"sender far outside": {commitSpec{content: func(b []byte) []byte { b[1+len(testGroup)+8+1] = 0xff; return b }},
			ErrMalformed, "FramedContent.sender"},
		"empty, no path":    {commitSpec{noPath: true}, ErrMalformed, path},
		"remove, no path":   {commitSpec{noPath: true, proposals: [][]byte{removeOf(1)}}, ErrMalformed, path},
		"context, no path":  {commitSpec{noPath: true, proposals: [][]byte{contextProposal()}}, ErrMalformed, path},
		"remove self":       {with(removeOf(0)), ErrMalformed, "Remove.removed"},
		"remove blank":      {with(removeOf(5)), ErrMalformed, "Remove.removed"},
		"remove twice":      {with(removeOf(1), removeOf(1)), ErrMalformed, "Remove.removed"},
		"update of oneself": {with(byValue(cat(u16(2), leafOf(t, 2)))), ErrMalformed, "Update"},
		"add twice":         {with(addOf(t, outsider), addOf(t, outsider)), ErrMalformed, "LeafNode.encryption_key"},
		"add one signer twice": {with(addOf(t, outsider), addOf(t, withKeyOf(t, outsider))), ErrMalformed,
			"LeafNode.signature_key"},
		"add of another suite": {with(addOf(t, newSpec(t, SuiteX25519ChaCha20))), ErrMalformed, "KeyPackage.cipher_suite"},
		"add badly signed":     {with(byValue(cat(u16(1), broken))), ErrBadSignature, "signature"},
		"psk twice":            {with(pskProposal(32, "a"), pskProposal(32, "a")), ErrMalformed, "PreSharedKeyID"},
		"two psks":             {with(pskProposal(32, "a"), pskProposal(32, "b")), nil, ""},
		"psk, short nonce":     {with(pskProposal(31, "a")), ErrMalformed, "PreSharedKeyID.psk_nonce"},
		"psk of a reinit": {with(byValue(cat(u16(4), u8(2), u8(2), vec([]byte("g")), u64(1), vec(make([]byte, 32))))),
			ErrMalformed, "PreSharedKeyID.usage"},
		"two contexts":        {with(contextProposal(), contextProposal()), ErrMalformed, list},
		"required capability": {with(contextProposal(required)), ErrMalformed, "Capabilities"},
		"malformed requirement": {with(contextProposal(ext(ExtensionRequiredCapabilities, 1))), ErrMalformed,
			"RequiredCapabilities.extension_types"},
		"reinit and another": {with(reInitProposal, removeOf(1)), ErrMalformed, list},
		"external_init":      {with(external), ErrMalformed, list},
		"unknown reference":  {with(cat(u8(2), vec(make([]byte, 32)))), ErrUnsupported, list},
		"external":           {join(external), nil, ""},
		"external, no path": {commitSpec{external: outsider, noPath: true, proposals: [][]byte{external}}, ErrMalformed,
			path},
		"external, no init":     {join(), ErrMalformed, list},
		"external, two inits":   {join(external, external), ErrMalformed, list},
		"external, two removes": {join(external, removeOf(1), removeOf(2)), ErrMalformed, list},
		"external, add":         {join(external, addOf(t, other)), ErrMalformed, list},
		"external, reference":   {join(external, cat(u8(2), vec(make([]byte, 32)))), ErrUnsupported, list},
		"external, bad init": {join(byValue(cat(u16(6), vec(make([]byte, 31))))), ErrMalformed,
			"ExternalInit.kem_output"},
		"external, removes blank": {join(external, removeOf(7)), ErrMalformed, "Remove.removed"},
		"leaf of an update":       {commitSpec{source: 2}, ErrMalformed, "LeafNode.leaf_node_source"},
		"leaf key kept":           {commitSpec{sameKey: true}, ErrMalformed, "LeafNode.encryption_key"},
		"one key for all nodes": {commitSpec{keyNode: first(newHPKEKey(t, SuiteX25519AES128))}, ErrMalformed,
			"UpdatePathNode.encryption_key"},
		"short node key": {commitSpec{keyNode: first(make([]byte, 31))}, ErrMalformed,
			"UpdatePathNode.encryption_key"},
		"a node too few": {commitSpec{nodes: func(n [][]byte) [][]byte { return n[1:] }}, ErrMalformed,
			"UpdatePath.nodes"},
		"a node too many": {commitSpec{nodes: func(n [][]byte) [][]byte { return append(n, n[0]) }}, ErrMalformed,
			"UpdatePath.nodes"},
		"a ciphertext too few": {commitSpec{secrets: func(s [][]byte) [][]byte { return s[1:] }}, ErrMalformed,
			"UpdatePathNode.encrypted_path_secret"},
		"a ciphertext too many": {commitSpec{secrets: func(s [][]byte) [][]byte { return append(s, s[0]) }}, ErrMalformed,
			"UpdatePathNode.encrypted_path_secret"},
		"a ciphertext too short": {commitSpec{secrets: func(s [][]byte) [][]byte {
			return append(s[1:], cat(vec(make([]byte, 32)), vec(make([]byte, 47))))
		}}, ErrMalformed, "UpdatePathNode.encrypted_path_secret"},
		"parent hash": {commitSpec{hash: func(b []byte) []byte { b[0] ^= 1; return b }}, ErrMalformed,
			"LeafNode.parent_hash"},
		"unsupported context": {with(contextProposal(ext(0x7777))), ErrMalformed, "Capabilities.extensions"}, // M5
		"supported context":   {with(contextProposal(ext(0x2a2a))), nil, ""},
		"custom by value":     {with(byValue(cat(u16(0xf001), []byte("anything")))), ErrUnsupported, list}, // M2
		"custom, forged": {commitSpec{proposals: [][]byte{byValue(u16(0xf001))}, signer: outsider}, ErrBadSignature,
			"FramedContentAuthData.signature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroupSpec(t, SuiteX25519AES128, 5)
			_, err := g.group.Apply(must(ParseCommit(c.spec.build(t, g)))(t))
			wantError(t, err, c.want, c.field)
		})
	}
}

// withKeyOf returns another KeyPackage of the device that made s.
func withKeyOf(t testing.TB, s *keyPackageSpec) *keyPackageSpec {
	t.Helper()
	other := *s
	other.initKey, other.encKey = newHPKEKey(t, CipherSuite(s.suite)), newHPKEKey(t, CipherSuite(s.suite))
	return &other
}

// TestApplyUpdate applies Updates, which come by reference, from members other than the committer.
func TestApplyUpdate(t *testing.T) {
	t.Parallel()
	g := newGroupSpec(t, SuiteP256AES128, 4)
	propose := func(sender, as uint32, proposal []byte) []byte {
		return proposeAs(t, g, g.members[as], member(sender), proposal)
	}
	update := func(leaf uint32, key []byte) []byte {
		s := *g.members[leaf]
		s.source = 2
		if s.encKey = key; key == nil {
			s.encKey = newHPKEKey(t, g.suite)
		}
		return cat(u16(2), s.leafIn(t, g.group.GroupID, leaf, nil))
	}
	for name, c := range map[string]struct {
		proposal []byte
		want     error
		field    string
	}{
		"good":           {propose(2, 2, update(2, nil)), nil, ""},
		"the committer":  {propose(0, 0, update(0, nil)), ErrMalformed, "Update"},
		"another's leaf": {propose(2, 2, update(1, nil)), ErrBadSignature, "LeafNode.signature"},
		"forged":         {propose(2, 1, update(2, nil)), ErrBadSignature, "FramedContentAuthData.signature"},
		"same key":       {propose(2, 2, update(2, g.members[2].encKey)), ErrMalformed, "LeafNode.encryption_key"},
		"another's key":  {propose(2, 2, update(2, g.members[1].encKey)), ErrMalformed, "LeafNode.encryption_key"},
	} {
		m := must(ParseProposal(c.proposal))(t)
		ref := cat(u8(2), vec(m.ref(g.suite)))
		msg := (&commitSpec{proposals: [][]byte{ref}, pending: []*ProposalMessage{m}}).build(t, g)
		change, err := g.group.Apply(must(ParseCommit(msg))(t), m)
		wantError(t, err, c.want, c.field)
		if err == nil {
			checkChange(t, g.group, change)
			if len(change.Updates) != 2 || change.Updates[0].After.Leaf != 2 {
				t.Errorf("%s: updates %+v", name, change.Updates)
			}
			_, err = g.group.Apply(must(ParseCommit((&commitSpec{proposals: [][]byte{ref, ref},
				pending: []*ProposalMessage{m}}).build(t, g)))(t), m)
			wantError(t, err, ErrUnsupported, "Commit.proposals")
		}
	}
}
