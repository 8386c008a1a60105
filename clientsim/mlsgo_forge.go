package clientsim

import (
	"errors"
	"fmt"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/credentials"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"
)

// This file makes what no honest client makes: objects that parse, and of which
// one thing is not true. The forger signs with its own key, where that helps it.

// forgery is what is changed in the framing of a commit.
type forgery struct {
	epoch  *uint64
	sender *uint32
	// signed is set if the forger, a member of the group, signs what it changed.
	signed bool
}

// forgeCommit puts other words around a PublicMessage commit.
func forgeCommit(g Group, message []byte, f forgery) ([]byte, error) {
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
	if f.epoch != nil {
		public.Content.Epoch = *f.epoch
	}
	if f.sender != nil {
		public.Content.Sender.LeafIndex = *f.sender
	}
	if !f.signed {
		return framing.NewMLSMessagePublic(public).Marshal(), nil
	}
	signed := framing.AuthenticatedContent{
		WireFormat: framing.WireFormatPublicMessage, Content: public.Content, Auth: public.Auth,
		GroupContext: forger.state.GroupContext().Marshal(),
	}
	if public.Auth.Signature, err = ciphersuite.SignWithLabel(forger.device.signer, "FramedContentTBS", signed.MarshalTBS()); err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	return framing.NewMLSMessagePublic(public).Marshal(), nil
}

// stageAs stages an update by which the device's own leaf becomes identity's.
func stageAs(g Group, identity string) (*Staged, error) {
	forger, ok := g.(*goGroup)
	if !ok {
		return nil, errors.New("forge: not a group of this library")
	}
	return forger.stage(nil, func(next *group.Group) error {
		own, ok := next.GetMember(next.OwnLeafIndex())
		if !ok {
			return errors.New("no leaf of its own")
		}
		own.Credential = credentials.NewBasicCredential([]byte(identity))
		return nil
	})
}

// infoForgery is what is wrong with a GroupInfo.
type infoForgery struct {
	noTree bool
	signer *uint32
}

// forgeInfo makes the GroupInfo of the staged epoch, signed by the device.
func forgeInfo(g Group, f infoForgery) ([]byte, error) {
	forger, ok := g.(*goGroup)
	if !ok || forger.pending == nil {
		return nil, errors.New("forge: nothing is staged")
	}
	info, err := forger.pending.next.GetGroupInfoWithOptions(forger.device.signer, group.WithRatchetTree(!f.noTree))
	if err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	if f.signer != nil {
		info.Signer = group.LeafNodeIndex(*f.signer)
		signature, err := ciphersuite.SignWithLabel(forger.device.signer, "GroupInfoTBS", info.MarshalTBS())
		if err != nil {
			return nil, fmt.Errorf("forge: %w", err)
		}
		info.Signature = signature.AsSlice()
	}
	return wrap(formatGroupInfo, info.Marshal()), nil
}

// forgePackage makes a KeyPackage and signs it, as a whole, after change.
func forgePackage(d Device, change func(*keypackages.KeyPackage) error) (KeyPackage, error) {
	forger, ok := d.(*goDevice)
	if !ok {
		return KeyPackage{}, errors.New("forge: not a device of this library")
	}
	public, _, err := keypackages.Generate(forger.cred, forger.suite)
	if err != nil {
		return KeyPackage{}, fmt.Errorf("forge: %w", err)
	}
	if err := change(public); err != nil {
		return KeyPackage{}, fmt.Errorf("forge: %w", err)
	}
	if err := forger.signPackage(public); err != nil {
		return KeyPackage{}, err
	}
	raw := public.Marshal()
	return KeyPackage{Message: wrap(formatKeyPackage, raw), Ref: refOf(raw, forger.suite)}, nil
}

// replayInitKey makes a KeyPackage with the init_key of another one.
func replayInitKey(d Device, used []byte) (KeyPackage, error) {
	return forgePackage(d, func(kp *keypackages.KeyPackage) error {
		old, err := readPackage(used)
		if err == nil {
			kp.InitKey = old.InitKey
		}
		return err
	})
}

// breakLeaf makes a KeyPackage whose leaf is not signed by anybody.
func breakLeaf(d Device) (KeyPackage, error) {
	return forgePackage(d, func(kp *keypackages.KeyPackage) error {
		kp.LeafNode.Signature[len(kp.LeafNode.Signature)-1] ^= 1
		return nil
	})
}

// forgeWelcome puts other KeyPackageRefs into a Welcome: in the place of those
// that stand there, one for one, and any more behind them.
func forgeWelcome(welcome []byte, refs ...[]byte) ([]byte, error) {
	raw, err := unwrap(formatWelcome, welcome)
	if err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	parsed, err := group.UnmarshalWelcome(raw)
	if err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	for i, ref := range refs {
		if i == len(parsed.Secrets) {
			parsed.Secrets = append(parsed.Secrets, parsed.Secrets[0])
		}
		parsed.Secrets[i].NewMember = ref
	}
	return wrap(formatWelcome, parsed.Marshal()), nil
}
