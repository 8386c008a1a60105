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

	. "mlsd/clientsim/steps"
)

// Garbage says what is wrong with a commit that some members cannot process.
type Garbage struct {
	// Spoil returns which of the n path secrets of the commit are spoiled. Each path secret is for one
	// device, or for the devices below one node.
	Spoil func(n int) []int
	// BadInfo also spoils the external_pub of the GroupInfo, so that nobody can enter the group with
	// it.
	BadInfo bool
}

// StageGarbage stages an encrypted rotation of the device's keys. The members whose path secrets
// are spoiled cannot process it; all others can. To the server it is a commit like any other.
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

func (g *goGroup) stageGarbage(what Garbage) (_ *Staged, err error) {
	defer Catch(&err)
	next := Must(copyWith(g.state, nil))
	twin := Must(copyWith(g.state, nil))
	signer, suite, initSecret := g.device.signer, next.CipherSuite(), next.EpochSecrets().InitSecret.Clone()
	commit := Must(next.CommitWithFormat(signer, signer.PublicKey(), nil, framing.WireFormatPrivateMessage))
	content := commit.AuthenticatedContent()
	Check(spoilPath(content, what.Spoil))
	content.Auth.Signature = Must(ciphersuite.SignWithLabel(signer, "FramedContentTBS",
		content.MarshalTBS()))
	// The twin is in the next epoch, with the right GroupContext and the wrong secrets.
	Check(twin.MergeCommit(commit))
	commitSecret := Must(commitSecretOf(commit, suite))
	context := twin.GroupContext()
	secrets := Must(epochSecrets(suite, initSecret, commitSecret, context.Marshal()))
	content.Auth.ConfirmationTag = schedule.ComputeConfirmationTag(suite, secrets.ConfirmationKey.AsSlice(),
		context.ConfirmedTranscriptHash)
	private := Must(framing.Encrypt(framing.EncryptParams{
		AuthContent: content, SenderLeafIndex: uint32(next.OwnLeafIndex()), CipherSuite: suite,
		PaddingSize: next.PaddingSize(), SenderDataSecret: next.EpochSecrets().SenderDataSecret,
		SecretTree: next.SecretTree(),
	}))
	Check(next.MergeCommit(commit))
	next = Must(withSecrets(next, secrets))
	info := Must(next.GetGroupInfo(signer))
	if what.BadInfo {
		Check(spoilInfo(info, signer))
	}
	g.pending = &pendingCommit{next: next, Staged: Staged{
		Epoch: next.Epoch().AsUint64(), Commit: framing.NewMLSMessagePrivate(private).Marshal(),
		GroupInfo: wrap(formatGroupInfo, info.Marshal()),
	}}
	return &g.pending.Staged, nil
}

// spoilPath flips a bit of some of a commit's encrypted path secrets.
func spoilPath(content *framing.AuthenticatedContent, spoil func(n int) []int) (err error) {
	defer Catch(&err)
	body, ok := content.Content.Body.(framing.CommitBody)
	if !ok {
		return errors.New("not a commit")
	}
	commit := Must(group.UnmarshalCommit(body.Data))
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

// commitSecretOf returns the commit_secret of a commit. The library has erased it. So it is derived
// from the last path secret but one, which the library keeps and does not show.
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
	groupContext []byte) (_ *schedule.EpochSecrets, err error) {
	defer Catch(&err)
	s := schedule.NewKeySchedule(suite, initSecret)
	s.SetCommitSecret(commitSecret)
	Must(s.ComputeJoinerSecret(groupContext))
	Must(s.ComputePskSecret(nil))
	Must(s.ComputeEpochSecret(groupContext))
	return s.DeriveEpochSecrets()
}

// withSecrets replaces the secrets of a group's epoch.
func withSecrets(g *group.Group, secrets *schedule.EpochSecrets) (_ *group.Group, err error) {
	defer Catch(&err)
	raw := Must(g.MarshalState())
	var state group.StateData
	Check(json.Unmarshal(raw, &state))
	state.EpochSecrets, state.SecretTree = secrets.MarshalData(), nil
	raw = Must(json.Marshal(state))
	return group.UnmarshalGroupState(raw)
}

// spoilInfo flips a bit of a GroupInfo's external_pub, and signs the whole again.
func spoilInfo(info *group.Info, signer *ciphersuite.SignaturePrivateKey) (err error) {
	defer Catch(&err)
	for i := range info.Extensions {
		if e := &info.Extensions[i]; e.Type == extensions.ExtensionTypeExternalPub {
			e.Data[len(e.Data)-1] ^= 1
		}
	}
	signature := Must(ciphersuite.SignWithLabel(signer, "GroupInfoTBS", info.MarshalTBS()))
	info.Signature = signature.AsSlice()
	return nil
}
