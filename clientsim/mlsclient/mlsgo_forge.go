package mlsclient

import (
	"errors"
	"fmt"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/credentials"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
)

// This file makes objects that no honest client makes. They parse, and one thing in them is false.
// The forger signs with its own key where that helps.

// Forgery says what to change in the framing of a commit.
type Forgery struct {
	Epoch  *uint64
	Sender *uint32
	// Signed is set if the forger, a member of the group, signs the change.
	Signed bool
}

// ForgeCommit changes the framing of a PublicMessage commit.
func ForgeCommit(g Group, message []byte, f Forgery) ([]byte, error) {
	forger, ok := g.(*goGroup)
	if !ok {
		return nil, errors.New("forge: not a group of this library")
	}
	parsed, err := framing.UnmarshalMLSMessage(message)
	if err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	public, ok := parsed.AsPublic()
	if !ok {
		return nil, errors.New("forge: not a PublicMessage")
	}
	if f.Epoch != nil {
		public.Content.Epoch = *f.Epoch
	}
	if f.Sender != nil {
		public.Content.Sender.LeafIndex = *f.Sender
	}
	if !f.Signed {
		return framing.NewMLSMessagePublic(public).Marshal(), nil
	}
	signed := framing.AuthenticatedContent{
		WireFormat: framing.WireFormatPublicMessage, Content: public.Content, Auth: public.Auth,
		GroupContext: forger.state.GroupContext().Marshal(),
	}
	if public.Auth.Signature, err = ciphersuite.SignWithLabel(forger.device.signer, "FramedContentTBS",
		signed.MarshalTBS()); err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	return framing.NewMLSMessagePublic(public).Marshal(), nil
}

// StageAs stages an update that puts identity into the device's own leaf.
func StageAs(g Group, identity string) (*Staged, error) {
	forger, ok := g.(*goGroup)
	if !ok {
		return nil, errors.New("forge: not a group of this library")
	}
	return forger.stage(Change{}, nil, func(next *group.Group) error {
		own, ok := next.GetMember(next.OwnLeafIndex())
		if !ok {
			return errors.New("no leaf of its own")
		}
		own.Credential = credentials.NewBasicCredential([]byte(identity))
		return nil
	})
}
