package mls

import (
	"strconv"
	"testing"
)

// groupSpec is a group with its members' private keys.
type groupSpec struct {
	suite   CipherSuite
	members map[uint32]*keyPackageSpec
	group   *Group
}

// newGroupSpec returns a group of n members. All its parents are blank, as just after the Adds.
func newGroupSpec(t testing.TB, suite CipherSuite, n int, context ...[]byte) *groupSpec {
	return newGroupSpecWith(t, suite, n, nil, context...)
}

// newGroupSpecWith is newGroupSpec. edit, unless nil, changes each member before it is in the tree.
func newGroupSpecWith(t testing.TB, suite CipherSuite, n int, edit func(i int, s *keyPackageSpec),
	context ...[]byte) *groupSpec {
	t.Helper()
	g := &groupSpec{suite: suite, members: map[uint32]*keyPackageSpec{}}
	tree := &Tree{suite: suite, leaves: make([]*leafNode, 1)}
	for i := range n {
		s := newSpec(t, suite)
		s.credential = basic("did:plc:member" + strconv.Itoa(i))
		if edit != nil {
			edit(i, s)
		}
		leaf, err := tree.blankLeaf(i)
		if err != nil {
			t.Fatal(err)
		}
		tree.add(leaf, &mustParse(t, s.build(t)).leaf)
		g.members[leaf] = s
	}
	tree.rehash()
	g.group = &Group{
		CipherSuite:             suite,
		GroupID:                 []byte(testGroup),
		Epoch:                   5,
		ConfirmedTranscriptHash: make([]byte, suite.hashSize()),
		ContextExtensions:       cat(context...),
		ConfirmationTag:         make([]byte, suite.hashSize()),
		Tree:                    tree,
	}
	return g
}

// groupInfo returns a bare GroupInfo of the group that a member signed.
func (g *groupSpec) groupInfo(t testing.TB, signer uint32) []byte {
	t.Helper()
	tbs := cat(g.group.Context(), vec(ext(ExtensionRatchetTree, g.group.Tree.Encode()...)),
		vec(g.group.ConfirmationTag), u32(signer))
	return cat(tbs, vec(g.members[signer].sign(t, "GroupInfoTBS", tbs)))
}

// commitSpec says how to build a commit. The zero value is a valid empty commit of member 0. Hooks
// change the content before it is signed.
type commitSpec struct {
	sender    uint32
	external  *keyPackageSpec
	proposals [][]byte // as in ProposalOrRef
	pending   []*ProposalMessage
	noPath    bool
	source    uint8                   // of the path's leaf; 0 for commit
	keyNode   func([]byte) []byte     // each path node's key
	secrets   func([][]byte) [][]byte // each path node's ciphertexts
	hash      func([]byte) []byte     // the leaf's parent hash
	nodes     func([][]byte) [][]byte
	sameKey   bool // the path's leaf keeps its encryption key
	content   func([]byte) []byte
	signer    *keyPackageSpec
}

func byValue(proposal []byte) []byte { return cat(u8(1), proposal) }
func removeOf(leaf uint32) []byte    { return byValue(cat(u16(3), u32(leaf))) }
func addOf(t testing.TB, s *keyPackageSpec) []byte {
	return byValue(cat(u16(1), s.build(t)))
}

// build returns a PublicMessage with the commit. The code under test computes the path. The vectors
// show that it is right.
func (c *commitSpec) build(t testing.TB, g *groupSpec) []byte {
	t.Helper()
	signer, sender := c.external, u8(4)
	if c.external == nil {
		signer, sender = g.members[c.sender], member(c.sender)
	}
	var path []byte
	if !c.noPath {
		path = c.path(t, g, signer)
	}
	body := cat(vec(c.proposals...), path)
	if c.noPath {
		body = cat(vec(c.proposals...), u8(0))
	}
	framedContent := content(g.group.Epoch, sender, ContentTypeCommit, body)
	if c.content != nil {
		framedContent = c.content(framedContent)
	}
	if c.signer != nil {
		signer = c.signer
	}
	tbs := cat(u16(1, 1), framedContent, g.group.Context())
	tags := vec(make([]byte, g.suite.hashSize()))
	if c.external == nil {
		tags = cat(tags, tags)
	}
	return framed(1, cat(framedContent, vec(signer.sign(t, "FramedContentTBS", tbs)), tags))
}

// path returns an optional UpdatePath that is present.
func (c *commitSpec) path(t testing.TB, g *groupSpec, signer *keyPackageSpec) []byte {
	t.Helper()
	draft := newReader("draft", cat(vec(c.proposals...), u8(0)))
	draft.into = &handshake{}
	draft.commit()
	if err := draft.finish(); err != nil {
		t.Fatal(err)
	}
	a := &applier{g: g.group, tree: g.group.Tree.clone(), change: &Change{External: c.external != nil},
		c: &Commit{Header: Header{Sender: c.sender}, Proposals: draft.into.proposals}}
	for _, p := range a.c.Proposals {
		sent := sentProposal{Proposal: &p, leaf: c.sender, member: true}
		for _, m := range c.pending {
			if string(p.Reference) == string(m.ref(g.suite)) {
				sent = sentProposal{Proposal: &m.Proposal, leaf: m.Sender, member: true}
			}
		}
		a.proposals = append(a.proposals, sent)
	}
	if err := a.applyProposals(); err != nil {
		t.Fatal(err)
	}
	leaf := a.change.Committer
	steps := a.tree.filteredPath(leaf)
	a.tree.blankPath(leaf)
	var nodes [][]byte
	var hash []byte
	for i := len(steps) - 1; i >= 0; i-- {
		key := newHPKEKey(t, g.suite)
		if c.keyNode != nil {
			key = c.keyNode(key)
		}
		a.tree.parents[steps[i].parent/2] = &parentNode{encryptionKey: key, parentHash: hash}
		hash = a.tree.parentHash(steps[i].parent, steps[i].copath)
		var secrets [][]byte
		a.tree.resolve(steps[i].copath, func(x nodeIndex) bool {
			if !x.isLeaf() || !contains(a.added, x.leaf()) {
				secrets = append(secrets, cat(vec(newKEMOutput(t, g.suite)), vec(make([]byte, g.suite.hashSize()+16))))
			}
			return true
		})
		if c.secrets != nil {
			secrets = c.secrets(secrets)
		}
		nodes = append([][]byte{cat(vec(key), vec(secrets...))}, nodes...)
	}
	if c.hash != nil {
		hash = c.hash(hash)
	}
	if c.nodes != nil {
		nodes = c.nodes(nodes)
	}
	s := *signer
	if s.source = 3; c.source != 0 {
		s.source = c.source
	}
	if !c.sameKey {
		s.encKey = newHPKEKey(t, g.suite)
	}
	return cat(u8(1), s.leafIn(t, g.group.GroupID, leaf, hash), vec(nodes...))
}

// leafIn returns a LeafNode signed for its place in a group.
func (s *keyPackageSpec) leafIn(t testing.TB, group []byte, index uint32, parentHash []byte) []byte {
	t.Helper()
	tbs := cat(vec(s.encKey), vec(s.sigKey), s.credential,
		vec(u16(s.versions...)), vec(u16(s.suites...)), vec(u16(s.capExts...)), vec(u16(s.capProposals...)),
		vec(u16(s.credentials...)),
		u8(s.source))
	if s.source == 3 {
		tbs = cat(tbs, vec(parentHash))
	}
	tbs = cat(tbs, vec(s.leafExts))
	return cat(tbs, vec(s.sign(t, "LeafNodeTBS", cat(tbs, vec(group), u32(index)))))
}
