package mlsclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/thomas-vilte/mls-go/ciphersuite"
	"github.com/thomas-vilte/mls-go/extensions"
	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/schedule"
)

// Garbage says what is wrong with a commit that some members cannot process.
type Garbage struct {
	// Spoil returns which of the n path secrets of the commit are spoiled. Each path secret is for one
	// device, or for the devices below one node.
	Spoil func(n int) []int
	// BadInfo spoils the external_pub of the GroupInfo too, so that nobody can enter by it.
	BadInfo bool
}

// StageGarbage stages an encrypted rotation of the device's keys. The members whose path secrets are
// spoiled cannot process it; all others can. To the server it is a commit like any other.
func StageGarbage(g Group, what Garbage) (*Staged, error) {
	forger, ok := g.(*goGroup)
	if !ok {
		return nil, errors.New("forge: not a group of this library")
	}
	staged, err := forger.stageGarbage(what)
	if err != nil {
		return nil, fmt.Errorf("forge: %w", err)
	}
	return staged, nil
}

func (g *goGroup) stageGarbage(what Garbage) (*Staged, error) {
	next, err := copyGroup(g.state)
	if err != nil {
		return nil, err
	}
	twin, err := copyGroup(g.state)
	if err != nil {
		return nil, err
	}
	signer, suite, initSecret := g.device.signer, next.CipherSuite(), next.EpochSecrets().InitSecret.Clone()
	commit, err := next.CommitWithFormat(signer, signer.PublicKey(), nil, framing.WireFormatPrivateMessage)
	if err != nil {
		return nil, err
	}
	content := commit.AuthenticatedContent()
	if err := spoilPath(content, what.Spoil); err != nil {
		return nil, err
	}
	if content.Auth.Signature, err = ciphersuite.SignWithLabel(signer, "FramedContentTBS",
		content.MarshalTBS()); err != nil {
		return nil, err
	}
	// The twin is in the next epoch, with the right GroupContext and the wrong secrets.
	if err := twin.MergeCommit(commit); err != nil {
		return nil, err
	}
	commitSecret, err := commitSecretOf(commit, suite)
	if err != nil {
		return nil, err
	}
	context := twin.GroupContext()
	secrets, err := epochSecrets(suite, initSecret, commitSecret, context.Marshal())
	if err != nil {
		return nil, err
	}
	content.Auth.ConfirmationTag = schedule.ComputeConfirmationTag(suite, secrets.ConfirmationKey.AsSlice(),
		context.ConfirmedTranscriptHash)
	private, err := framing.Encrypt(framing.EncryptParams{
		AuthContent: content, SenderLeafIndex: uint32(next.OwnLeafIndex()), CipherSuite: suite,
		PaddingSize: next.PaddingSize(), SenderDataSecret: next.EpochSecrets().SenderDataSecret,
		SecretTree: next.SecretTree(),
	})
	if err != nil {
		return nil, err
	}
	if err := next.MergeCommit(commit); err != nil {
		return nil, err
	}
	if next, err = withSecrets(next, secrets); err != nil {
		return nil, err
	}
	info, err := next.GetGroupInfo(signer)
	if err != nil {
		return nil, err
	}
	if what.BadInfo {
		if err := spoilInfo(info, signer); err != nil {
			return nil, err
		}
	}
	g.pending = &pendingCommit{next: next, Staged: Staged{
		Epoch: next.Epoch().AsUint64(), Commit: framing.NewMLSMessagePrivate(private).Marshal(),
		GroupInfo: wrap(formatGroupInfo, info.Marshal()),
	}}
	return &g.pending.Staged, nil
}

// spoilPath flips a bit of some of a commit's encrypted path secrets.
func spoilPath(content *framing.AuthenticatedContent, spoil func(n int) []int) error {
	body, ok := content.Content.Body.(framing.CommitBody)
	if !ok {
		return errors.New("not a commit")
	}
	commit, err := group.UnmarshalCommit(body.Data)
	if err != nil {
		return err
	}
	var secrets []*ciphersuite.HPKECiphertext
	for i := range commit.Path.Nodes {
		for j := range commit.Path.Nodes[i].EncryptedPathSecrets {
			secrets = append(secrets, &commit.Path.Nodes[i].EncryptedPathSecrets[j])
		}
	}
	for _, i := range spoil(len(secrets)) {
		secrets[i].Ciphertext[0] ^= 1
	}
	content.Content.Body = framing.CommitBody{Data: commit.Marshal()}
	return nil
}

// commitSecretOf returns the commit_secret, which the library has erased. It is derived from the last
// path secret but one, which the library keeps and does not show.
func commitSecretOf(commit *group.StagedCommit, suite ciphersuite.CipherSuite) (*ciphersuite.Secret, error) {
	kept := reflect.ValueOf(commit).Elem().FieldByName("pathSecrets")
	if !kept.IsValid() || kept.Len() < 2 {
		return nil, errors.New("the library keeps no path secrets")
	}
	last := kept.Index(kept.Len() - 2).Elem().FieldByName("Value").Bytes()
	return ciphersuite.NewSecretForCS(suite, last).DeriveSecret(suite, "path")
}

// epochSecrets runs the key schedule of a commit without PSKs (RFC 9420 §8).
func epochSecrets(suite ciphersuite.CipherSuite, initSecret, commitSecret *ciphersuite.Secret,
	groupContext []byte) (*schedule.EpochSecrets, error) {
	s := schedule.NewKeySchedule(suite, initSecret)
	s.SetCommitSecret(commitSecret)
	if _, err := s.ComputeJoinerSecret(groupContext); err != nil {
		return nil, err
	}
	if _, err := s.ComputePskSecret(nil); err != nil {
		return nil, err
	}
	if _, err := s.ComputeEpochSecret(groupContext); err != nil {
		return nil, err
	}
	return s.DeriveEpochSecrets()
}

// withSecrets replaces the secrets of a group's epoch.
func withSecrets(g *group.Group, secrets *schedule.EpochSecrets) (*group.Group, error) {
	raw, err := g.MarshalState()
	if err != nil {
		return nil, err
	}
	var state group.StateData
	if err := json.Unmarshal(raw, &state); err != nil {
		return nil, err
	}
	state.EpochSecrets, state.SecretTree = secrets.MarshalData(), nil
	if raw, err = json.Marshal(state); err != nil {
		return nil, err
	}
	return group.UnmarshalGroupState(raw)
}

// spoilInfo flips a bit of a GroupInfo's external_pub, and signs the whole again.
func spoilInfo(info *group.Info, signer *ciphersuite.SignaturePrivateKey) error {
	for i := range info.Extensions {
		if e := &info.Extensions[i]; e.Type == extensions.ExtensionTypeExternalPub {
			e.Data[len(e.Data)-1] ^= 1
		}
	}
	signature, err := ciphersuite.SignWithLabel(signer, "GroupInfoTBS", info.MarshalTBS())
	if err != nil {
		return err
	}
	info.Signature = signature.AsSlice()
	return nil
}
