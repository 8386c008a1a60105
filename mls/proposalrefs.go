package mls

import "bytes"

// resolve finds the proposals that the commit refers to, and verifies their senders (RFC 9420
// §6.1). It lists them with the proposals that the commit contains.
func (a *applier) resolve(pending []*ProposalMessage) error {
	var byRef map[string]*ProposalMessage
	a.proposals = make([]sentProposal, 0, len(a.c.Proposals))
	for i := range a.c.Proposals {
		p := &a.c.Proposals[i]
		if p.Type != 0 {
			a.proposals = append(a.proposals, sentProposal{p, a.c.Sender, !a.change.External})
			continue
		}
		if a.change.External {
			return refuseCommit(ErrMalformed, "Commit.proposals", "12.4.3.2", "an external commit with a proposal by reference")
		}
		if byRef == nil {
			byRef = make(map[string]*ProposalMessage, len(pending))
			for _, m := range pending {
				byRef[string(m.ref(a.g.CipherSuite))] = m
			}
		}
		m := byRef[string(p.Reference)]
		if m == nil {
			return refuseCommit(ErrUnsupported, "Commit.proposals", "12.4", "a reference to a proposal that is not known here, or two to one")
		}
		delete(byRef, string(p.Reference))
		if err := a.verifyProposal(m); err != nil {
			return err
		}
		a.proposals = append(a.proposals, sentProposal{&m.Proposal, m.Sender, m.SenderType == SenderTypeMember})
	}
	return nil
}

// ref returns the ProposalRef (§5.2).
func (m *ProposalMessage) ref(suite CipherSuite) []byte {
	return suite.refHash("MLS 1.0 Proposal Reference", m.parts.authenticated())
}

// verifyProposal verifies that a proposal is of this epoch and that its sender signed it (§6.1).
func (a *applier) verifyProposal(m *ProposalMessage) error {
	g := a.g
	if !bytes.Equal(m.GroupID, g.GroupID) || m.Epoch != g.Epoch {
		return refuseCommit(ErrMalformed, "Commit.proposals", "12.1", "a proposal of another epoch")
	}
	switch m.SenderType {
	case SenderTypeMember:
		l := g.Tree.leaf(m.Sender)
		if l == nil {
			return refuseCommit(ErrMalformed, "Commit.proposals", "6.1", "a proposal from a blank leaf")
		}
		return g.verifyHandshake(&m.parts, l.signatureKey, a.signed)
	case SenderTypeExternal:
		if a.senders == nil {
			var err error
			if a.senders, err = g.externalSenders(); err != nil {
				return err
			}
		}
		if int64(m.Sender) >= int64(len(a.senders)) {
			return refuseCommit(ErrMalformed, "Commit.proposals", "12.1.8.1", "a proposal from an external sender that the group does not list")
		}
		return g.verifyHandshake(&m.parts, a.senders[m.Sender], nil)
	}
	return g.verifyHandshake(&m.parts, m.Proposal.KeyPackage.SignatureKey, nil)
}

// externalSenders returns the signature keys of the group's external senders
// (§12.1.8.1).
func (g *Group) externalSenders() (keys [][]byte, err error) {
	data, ok := g.ContextExtensions.Get(ExtensionExternalSenders)
	if !ok {
		return nil, nil
	}
	r := newReader("GroupContext", data)
	r.in = place{"ExternalSender", "12.1.8.1"}
	r.vector("external_senders", func(r *reader) {
		keys = append(keys, r.opaque("signature_key"))
		r.credential()
	})
	return keys, r.finish()
}
