package mlsclient

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"

	. "mlsd/clientsim/steps"
)

// Which proposals of others a commit of this library takes.
//
// A commit refers to the pending proposals that were sent in clear, because the server has judged
// them: it accepts what everybody can commit. It leaves out proposals that were encrypted, and those
// that the library cannot commit, such as a PSK that the device does not have (RFC 9420 §12.2). A
// device that put each pending proposal into each commit could be stopped by one bad proposal.

// Propose implements Proposer, for proposals of type Raw. It does not keep the proposal.
func (g *goGroup) Propose(kind Proposal, argument []byte) ([]byte, error) {
	if kind != Raw {
		return nil, fmt.Errorf("propose: the library makes no %s", kind)
	}
	message, err := g.propose(argument)
	if err != nil {
		return nil, fmt.Errorf("propose: %w", err)
	}
	return message, nil
}

// propose frames an encoded proposal as the device wants its handshakes, whatever its content.
func (g *goGroup) propose(proposal []byte) (_ []byte, err error) {
	defer Catch(&err)
	signer, suite, secrets := g.device.signer, g.state.CipherSuite(), g.state.EpochSecrets()
	content := framing.FramedContent{
		GroupID: g.ID(), Epoch: g.Epoch(), Body: framing.ProposalBody{Data: proposal},
		Sender: framing.Sender{Type: framing.SenderTypeMember, LeafIndex: g.Own()},
	}
	context := g.state.GroupContext().Marshal()
	if !g.device.hidden {
		public := Must(framing.NewPublicMessage(content, signer, context, secrets.MembershipKey, suite))
		return framing.NewMLSMessagePublic(public).Marshal(), nil
	}
	private := Must(framing.Encrypt(framing.EncryptParams{
		Content: content, SenderLeafIndex: g.Own(), CipherSuite: suite, PaddingSize: g.state.PaddingSize(),
		SenderDataSecret: secrets.SenderDataSecret, SecretTree: g.state.SecretTree(), SigKey: signer,
		GroupContext: context,
	}))
	return framing.NewMLSMessagePrivate(private).Marshal(), nil
}

// receivePublic keeps a proposal that was sent in clear, if the library takes it.
func (g *goGroup) receivePublic(message *framing.PublicMessage) Received {
	got := Received{Proposal: true, Epoch: message.Content.Epoch, Sender: g.identityOf(message.Content.Sender.LeafIndex)}
	g.attempt(func() error { return g.state.ProcessPublicMessage(message) })
	return got
}

// receivePrivate decrypts a proposal, so that a commit of another member can refer to it. The
// device's own commits leave it out.
func (g *goGroup) receivePrivate(message *framing.PrivateMessage) (Received, error) {
	sender, err := g.senderOf(message)
	if err != nil {
		return Received{}, err
	}
	before := len(g.state.StoredProposals())
	g.attempt(func() error { return g.state.ProcessPrivateMessage(message) })
	for _, stored := range g.state.StoredProposals()[before:] {
		g.state.Proposals().RemoveByRef(stored.Ref)
	}
	return Received{Proposal: true, Epoch: message.Epoch, Sender: g.identityOf(sender)}, nil
}

// attempt gives a proposal to the library, which may refuse it or fail on it. A proposal that it
// does not take is not committed, and nothing else follows from it.
func (g *goGroup) attempt(process func() error) bool {
	return Attempt(func() { Check(process()) }) == nil
}

// identityOf returns the identity of a leaf, or "" if the leaf is blank.
func (g *goGroup) identityOf(leaf uint32) string {
	member, ok := g.state.GetMember(group.LeafNodeIndex(leaf))
	if !ok {
		return ""
	}
	return string(member.Credential.Identity)
}

// senderOf decrypts the sender of a PrivateMessage (RFC 9420 §6.3.2). The library does so only
// together with the content, which it may not be able to read.
func (g *goGroup) senderOf(message *framing.PrivateMessage) (leaf uint32, err error) {
	defer CatchIn(&err, "sender")
	suite, secret := g.state.CipherSuite(), g.state.EpochSecrets().SenderDataSecret
	sample := message.Ciphertext[:min(len(message.Ciphertext), suite.HashLength())]
	key := Must(secret.KdfExpandLabel("key", sample, suite.AEADKeyLength()))
	nonce := Must(secret.KdfExpandLabel("nonce", sample, suite.AEADNonceLength()))
	aad := binary.BigEndian.AppendUint64(appendVector(nil, message.GroupID), message.Epoch)
	aad = append(aad, byte(message.ContentType))
	plain := Must(ciphersuite.DecryptWithCipherSuite(key.AsSlice(), nonce.AsSlice(), message.EncryptedSenderData, aad,
		suite))
	data := Must(framing.UnmarshalSenderData(plain))
	return data.LeafIndex, nil
}

// committable returns the pending proposals that a commit with the given change can refer to.
func (g *goGroup) committable(change Change) (chosen []group.StoredProposal) {
	for _, p := range g.state.StoredProposals() {
		if leaf := p.Sender; p.Proposal.Type == group.ProposalTypeReInit ||
			p.Proposal.Type == group.ProposalTypeUpdate && slices.Contains(change.Remove, uint32(leaf)) ||
			p.Proposal.Remove != nil && slices.Contains(change.Remove, uint32(p.Proposal.Remove.Removed)) {
			continue // the library cannot store a closed group; the change removes the leaf anyway
		}
		if g.canCommit(append(slices.Clone(chosen), p)) {
			chosen = append(chosen, p)
		}
	}
	return chosen
}

// canCommit reports whether the library makes a commit of the proposals.
func (g *goGroup) canCommit(proposals []group.StoredProposal) bool {
	return g.attempt(func() (err error) {
		defer Catch(&err)
		twin := Must(copyWith(g.state, proposals))
		Must(twin.CommitWithFormat(g.device.signer, g.device.signer.PublicKey(), nil, framing.WireFormatPublicMessage))
		return nil
	})
}

// copyWith is copyGroup with other pending proposals.
func copyWith(g *group.Group, proposals []group.StoredProposal) (*group.Group, error) {
	next, err := copyGroup(g)
	if err != nil {
		return nil, err
	}
	next.ClearProposals()
	for _, p := range proposals {
		next.StoreProposalWithRef(p.Proposal, p.Sender, p.Ref)
	}
	return next, nil
}

// StageRaw stages a commit of encoded proposals by value, in addition to the pending ones. Proposals
// that the library cannot read are an error.
func StageRaw(g Group, proposals ...[]byte) (*Staged, error) {
	forger, ok := g.(*goGroup)
	if !ok {
		return nil, errors.New("stage: not a group of this library")
	}
	return forger.stage(Change{}, nil, func(next *group.Group) (err error) {
		defer Catch(&err)
		for _, proposal := range proposals {
			next.Proposals().AddProposal(Must(group.UnmarshalProposal(proposal)), group.LeafNodeIndex(g.Own()))
		}
		return nil
	})
}
