package mlsclient

import (
	"errors"
	"fmt"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/credentials"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
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
	return forger.stage(nil, func(next *group.Group) error {
		own, ok := next.GetMember(next.OwnLeafIndex())
		if !ok {
			return errors.New("no leaf of its own")
		}
		own.Credential = credentials.NewBasicCredential([]byte(identity))
		return nil
	})
}

// InfoForgery says what is wrong with a GroupInfo.
type InfoForgery struct {
	NoTree bool
	Signer *uint32
}

// ForgeInfo makes the GroupInfo of the staged epoch, signed by the device.
func ForgeInfo(g Group, f InfoForgery) (_ []byte, err error) {
	defer CatchIn(&err, "forge")
	forger, ok := g.(*goGroup)
	if !ok || forger.pending == nil {
		return nil, errors.New("forge: nothing is staged")
	}
	info := Must(forger.pending.next.GetGroupInfoWithOptions(forger.device.signer, group.WithRatchetTree(!f.NoTree)))
	if f.Signer != nil {
		info.Signer = group.LeafNodeIndex(*f.Signer)
		signature := Must(ciphersuite.SignWithLabel(forger.device.signer, "GroupInfoTBS", info.MarshalTBS()))
		info.Signature = signature.AsSlice()
	}
	return wrap(formatGroupInfo, info.Marshal()), nil
}

// forgePackage makes a KeyPackage, changes it, and signs the whole again.
func forgePackage(d Device, change func(*keypackages.KeyPackage) error) (_ KeyPackage, err error) {
	defer Catch(&err)
	forger, ok := d.(*goDevice)
	if !ok {
		return KeyPackage{}, errors.New("forge: not a device of this library")
	}
	public, _, err := keypackages.Generate(forger.cred, forger.suite)
	Check(errs.Wrap(err, "forge"))
	Check(errs.Wrap(change(public), "forge"))
	Check(forger.signPackage(public))
	raw := public.Marshal()
	return KeyPackage{Message: wrap(formatKeyPackage, raw), Ref: refOf(raw)}, nil
}

// ReplayInitKey makes a KeyPackage with the init_key of another KeyPackage.
func ReplayInitKey(d Device, used []byte) (KeyPackage, error) {
	return forgePackage(d, func(kp *keypackages.KeyPackage) error {
		old, err := readPackage(used)
		if err == nil {
			kp.InitKey = old.InitKey
		}
		return err
	})
}

// BreakLeaf makes a KeyPackage whose leaf has no valid signature.
func BreakLeaf(d Device) (KeyPackage, error) {
	return forgePackage(d, func(kp *keypackages.KeyPackage) error {
		kp.LeafNode.Signature[len(kp.LeafNode.Signature)-1] ^= 1
		return nil
	})
}

// ForgeWelcome replaces the KeyPackageRefs of a Welcome, one for one, and appends the refs that are
// left.
func ForgeWelcome(welcome []byte, refs ...[]byte) (_ []byte, err error) {
	defer CatchIn(&err, "forge")
	raw := Must(unwrap(formatWelcome, welcome))
	parsed := Must(group.UnmarshalWelcome(raw))
	for i, ref := range refs {
		if i == len(parsed.Secrets) {
			parsed.Secrets = append(parsed.Secrets, parsed.Secrets[0])
		}
		parsed.Secrets[i].NewMember = ref
	}
	return wrap(formatWelcome, parsed.Marshal()), nil
}
