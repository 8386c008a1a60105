package mls

import (
	"bytes"
	"slices"
)

// resolve finds the proposals that the commit refers to, and verifies their senders (RFC 9420
// §6.1). It lists them together with the proposals that the commit contains. If a proposal is
// opaque, or a reference is unknown, resolve first verifies all known proposals. Then it refuses
// the commit.
func (a *applier) resolve(pending []*ProposalMessage) error {
	byRef := a.c.byRef(a.g.CipherSuite, pending)
	a.proposals = make([]sentProposal, 0, len(a.c.Proposals))
	var unknown error
	var custom []ProposalType // types of opaque proposals that were sent alone
	for i := range a.c.Proposals {
		p := &a.c.Proposals[i]
		sent := sentProposal{p, a.c.Sender, !a.change.External, a.committer}
		if p.Reference != nil {
			m := byRef[string(p.Reference)]
			if m == nil {
				unknown = refuseCommit(ErrUnsupported, "Commit.proposals", "12.4",
					"a reference to a proposal that is not known here, or two to one")
				continue
			}
			delete(byRef, string(p.Reference))
			if a.change.External && m.Proposal.Type != ProposalSelfRemove {
				return refuseCommit(ErrMalformed, "Commit.proposals", "12.4.3.2",
					"an external commit with a proposal by reference other than SelfRemove")
			}
			var err error
			if sent, err = a.verifier.sent(m); err != nil {
				return err
			}
		}
		if sent.Opaque {
			unknown = refuseCommit(ErrUnsupported, "Commit.proposals", "12.1", "a proposal of a type that is not known here")
			if p.Reference != nil {
				custom = append(custom, sent.Type)
			}
			continue
		}
		a.proposals = append(a.proposals, sent)
	}
	if len(a.proposals)+len(custom) == len(a.c.Proposals) { // else it is not known whom the commit removes
		for _, t := range custom {
			if err := a.checkSupport(t); err != nil {
				return err
			}
		}
	}
	return unknown
}

// byRef returns the pending proposals by their references, if the commit refers to any.
func (c *Commit) byRef(suite CipherSuite, pending []*ProposalMessage) map[string]*ProposalMessage {
	if !c.HasReferences() {
		return nil
	}
	all := make(map[string]*ProposalMessage, len(pending))
	for _, m := range pending {
		if ref := m.ref(suite); ref != nil {
			all[string(ref)] = m
		}
	}
	return all
}

// HasReferences reports whether the commit refers to proposals.
func (c *Commit) HasReferences() bool {
	return slices.ContainsFunc(c.Proposals, func(p Proposal) bool { return p.Reference != nil })
}

// ReInit returns the ReInit that the commit contains, or that it refers to and that is among
// pending. It returns nil if there is none. It verifies no signature, because Apply does. Callers
// use it for commits that Apply cannot judge.
func (c *Commit) ReInit(suite CipherSuite, pending ...*ProposalMessage) *ReInit {
	byRef := c.byRef(suite, pending)
	for i := range c.Proposals {
		p := &c.Proposals[i]
		if m := byRef[string(p.Reference)]; p.Reference != nil && m != nil {
			p = &m.Proposal
		}
		if p.ReInit != nil {
			return p.ReInit
		}
	}
	return nil
}

// ref returns the ProposalRef (§5.2). It is nil if the message cannot be a message of the suite.
func (m *ProposalMessage) ref(suite CipherSuite) []byte {
	readings := m.parts.readings(suite, m.SenderType)
	if len(readings) == 0 {
		return nil
	}
	return suite.refHash("MLS 1.0 Proposal Reference", readings[0].authenticated())
}

// proposalVerifier verifies proposals of one epoch.
type proposalVerifier struct {
	*Group
	signed  []byte           // the GroupContext, which members sign
	senders []externalSender // parsed when needed
}

// externalSender is an entry of the external_senders extension (§12.1.8.1).
type externalSender struct {
	key      []byte // signature key
	identity []byte // identity of a basic credential
}

// did returns the sender's account, in the form of Member.DID.
func (s externalSender) did() string { return Member{Identity: string(s.identity)}.DID() }

// verify verifies that a proposal is of this group and epoch, and that its sender signed it (§6.1).
func (v *proposalVerifier) verify(m *ProposalMessage) error {
	if !bytes.Equal(m.GroupID, v.GroupID) || m.Epoch != v.Epoch {
		return refuseCommit(ErrMalformed, "Commit.proposals", "12.1", "a proposal of another epoch")
	}
	switch m.SenderType {
	case SenderTypeMember:
		l := v.Tree.leaf(m.Sender)
		if l == nil {
			return refuseCommit(ErrMalformed, "Commit.proposals", "6.1", "a proposal from a blank leaf")
		}
		return v.verifyHandshake(&m.parts, m.SenderType, l.signatureKey, v.signed)
	case SenderTypeExternal:
		sender, err := v.sender(m.Sender)
		if err != nil {
			return err
		}
		return v.verifyHandshake(&m.parts, m.SenderType, sender.key, nil)
	}
	return v.verifyHandshake(&m.parts, m.SenderType, m.Proposal.KeyPackage.SignatureKey, nil)
}

// sent verifies a proposal, and returns it with its author.
func (v *proposalVerifier) sent(m *ProposalMessage) (sentProposal, error) {
	if err := v.verify(m); err != nil {
		return sentProposal{}, err
	}
	p := sentProposal{Proposal: &m.Proposal, leaf: m.Sender, member: m.SenderType == SenderTypeMember}
	switch m.SenderType {
	case SenderTypeMember:
		sender, _ := v.Tree.Member(m.Sender)
		p.by = Author{DID: sender.DID()}
	case SenderTypeExternal:
		p.by = Author{DID: v.senders[m.Sender].did(), External: true}
	}
	return p, nil
}

// sender returns the external sender with this index.
func (v *proposalVerifier) sender(index uint32) (externalSender, error) {
	if v.senders == nil {
		var err error
		if v.senders, err = v.externalSenders(); err != nil {
			return externalSender{}, err
		}
	}
	if int64(index) >= int64(len(v.senders)) {
		return externalSender{},
			refuseCommit(ErrMalformed, "Commit.proposals", "12.1.8.1",
				"a proposal from an external sender that the group does not list")
	}
	return v.senders[index], nil
}

// Removes returns the leaf that the proposal asks to remove, by Remove or SelfRemove.
func (m *ProposalMessage) Removes() (leaf uint32, ok bool) {
	p := sentProposal{Proposal: &m.Proposal, leaf: m.Sender}
	return p.removes()
}

// Author verifies a proposal of this group and epoch, and returns who made it.
//
// Errors: ErrMalformed, ErrBadSignature.
func (g *Group) Author(m *ProposalMessage) (Author, error) {
	v := proposalVerifier{Group: g, signed: g.Context()}
	p, err := v.sent(m)
	return p.by, err
}

// ExternalProposer verifies a proposal of an external sender (§12.1.8.1). The proposal must be of
// this group and epoch, and one of the group's external senders must have signed it.
// ExternalProposer returns the sender's account, in the form of Member.DID.
//
// Errors: ErrMalformed, ErrBadSignature.
func (g *Group) ExternalProposer(m *ProposalMessage) (did string, err error) {
	v := proposalVerifier{Group: g}
	sender, err := v.sender(m.Sender)
	if err == nil {
		err = v.verify(m)
	}
	if err != nil {
		return "", err
	}
	return sender.did(), nil
}

// ExternalSenders returns the accounts of the group's external senders (§12.1.8.1), in the form of
// Member.DID and in the order of the extension. It is empty if the extension is malformed.
func (g *Group) ExternalSenders() (dids []string) {
	all, err := g.externalSenders()
	if err != nil {
		return nil
	}
	for _, s := range all {
		dids = append(dids, s.did())
	}
	return dids
}

// externalSenders returns the group's external senders (§12.1.8.1).
func (g *Group) externalSenders() (all []externalSender, err error) {
	data, ok := g.ContextExtensions.Get(ExtensionExternalSenders)
	if !ok {
		return nil, nil
	}
	r := newReader("GroupContext", data)
	r.in = place{"ExternalSender", "12.1.8.1"}
	r.vector("external_senders", func(r *reader) {
		key := r.opaque("signature_key")
		_, identity := r.credential()
		all = append(all, externalSender{key, identity})
	})
	return all, r.finish()
}
