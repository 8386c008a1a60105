package mls

import "math"

// nobody is the leaf of no member: the committer of a commit that does not exist.
const nobody = math.MaxUint32

// Propose checks that a commit of another member can contain the proposal m and nothing else, and
// returns what such a commit changes, besides the committer's own leaf. It makes the checks of
// Apply. g does not change.
//
// pending are proposals of the epoch that members can commit already. Propose refuses m if one
// commit cannot contain it together with one of them (§12.2). But it accepts the removal of a leaf
// beside an Update of that leaf: a committer takes the removal.
//
// Errors: those of Apply. After ErrUnsupported, m is of a type that is not known here, its sender's
// signature was verified, and all members support the type.
func (g *Group) Propose(m *ProposalMessage, pending ...*ProposalMessage) (*Change, error) {
	a := &applier{
		g: g, c: &Commit{Header: Header{SenderType: SenderTypeMember, Sender: nobody}, HasPath: true},
		tree: g.Tree.clone(), context: g.ContextExtensions, change: &Change{},
		verifier: proposalVerifier{Group: g, signed: g.Context()},
	}
	for _, step := range []func() error{
		func() error { return a.propose(m) },
		func() error { return a.checkPending(pending) },
		a.checkProposals,
		a.checkCommitter,
		a.applyProposals,
		a.checkTree,
	} {
		if err := step(); err != nil {
			return nil, inObject("Proposal", err)
		}
	}
	a.change.Next = &Group{
		CipherSuite: g.CipherSuite, GroupID: g.GroupID, Epoch: g.Epoch + 1, ContextExtensions: a.context, Tree: a.tree,
	}
	return a.change, nil
}

// propose makes m the only proposal of the commit.
func (a *applier) propose(m *ProposalMessage) error {
	sent, err := a.verifier.sent(m)
	if err != nil {
		return err
	}
	if sent.Opaque {
		if err := a.checkSupport(sent.Type); err != nil {
			return err
		}
		return refuseCommit(ErrUnsupported, "Proposal", "12.1", "of a type that is not known here")
	}
	a.proposals = []sentProposal{sent}
	return nil
}

// checkPending checks that one commit can contain the proposal together with each pending one.
func (a *applier) checkPending(pending []*ProposalMessage) error {
	p := &a.proposals[0]
	for _, m := range pending {
		q := sentProposal{Proposal: &m.Proposal, leaf: m.Sender, member: m.SenderType == SenderTypeMember}
		if p.excludes(&q) && a.verifier.verify(m) == nil {
			return refuseCommit(ErrMalformed, "Proposal", "12.2",
				"excludes a proposal that was sent before in this epoch; wait for the next epoch")
		}
	}
	return nil
}

// excludes reports whether a commit that contains the earlier proposal q cannot contain p too.
func (p *sentProposal) excludes(q *sentProposal) bool {
	switch p.Type {
	case ProposalGroupContextExtensions:
		return q.Type == p.Type
	case ProposalPSK:
		return q.Type == p.Type && string(q.psk.raw) == string(p.psk.raw)
	}
	mine, changes := p.changes()
	theirs, also := q.changes()
	return changes && also && mine == theirs && (p.Type == ProposalUpdate || q.Type != ProposalUpdate)
}

// changes returns the leaf that a proposal updates or removes.
func (p *sentProposal) changes() (leaf uint32, ok bool) {
	if p.Type == ProposalUpdate {
		return p.leaf, true
	}
	return p.removes()
}

// checkCommitter checks that a member is left that can commit the proposal: a commit cannot update
// or remove its own sender's leaf by a proposal.
func (a *applier) checkCommitter() error {
	changed, changes := a.proposals[0].changes()
	for i, l := range a.g.Tree.leaves {
		if l != nil && (!changes || uint32(i) != changed) {
			return nil
		}
	}
	return refuseCommit(ErrMalformed, "Proposal", "12.2", "of the only member, which nobody else can commit")
}
