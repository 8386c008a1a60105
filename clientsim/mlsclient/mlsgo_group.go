package mlsclient

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/thomas-vilte/mls-go/framing"
	"github.com/thomas-vilte/mls-go/group"
	"github.com/thomas-vilte/mls-go/keypackages"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// goGroup implements Group.
type goGroup struct {
	usual
	device  *goDevice
	state   *group.Group
	pending *pendingCommit
}

func newGoGroup(d *goDevice) *goGroup {
	g := &goGroup{device: d}
	g.usual = usual{g}
	return g
}

// pendingCommit is a staged commit and the group after it.
type pendingCommit struct {
	Staged
	next *group.Group
}

func (g *goGroup) ID() []byte            { return bytes.Clone(g.state.ID().AsSlice()) }
func (g *goGroup) Epoch() uint64         { return g.state.Epoch().AsUint64() }
func (g *goGroup) Authenticator() []byte { return bytes.Clone(g.state.EpochAuthenticator()) }

func (g *goGroup) Own() uint32 { return uint32(g.state.OwnLeafIndex()) }

func (g *goGroup) Leaves() []Leaf {
	members := slices.Clone(g.state.GetMembers())
	slices.SortFunc(members, func(a, b *group.Member) int { return int(a.LeafIndex) - int(b.LeafIndex) })
	leaves := make([]Leaf, len(members))
	for i, m := range members {
		leaves[i] = Leaf{
			Index: uint32(m.LeafIndex), Identity: string(m.Credential.Identity),
			SignatureKey: g.state.MemberSigningKey(m.LeafIndex),
		}
	}
	return leaves
}

func (g *goGroup) GroupInfo() ([]byte, error) {
	info, err := g.state.GetGroupInfo(g.device.signer)
	if err != nil {
		return nil, fmt.Errorf("group info: %w", err)
	}
	return wrap(formatGroupInfo, info.Marshal()), nil
}

func (g *goGroup) Encrypt(plaintext []byte) ([]byte, error) {
	message, err := g.state.SendMessage(plaintext, g.device.signer)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return framing.NewMLSMessagePrivate(message).Marshal(), nil
}

func (g *goGroup) Process(message []byte) (_ Received, err error) {
	defer CatchIn(&err, "process")
	if g.pending != nil && bytes.Equal(message, g.pending.Commit) {
		epoch := g.Epoch()
		own := Leaf{Index: g.Own(), Identity: g.device.identity, SignatureKey: g.device.SignatureKey()}
		return Received{Commit: true, Own: true, Epoch: epoch, Sender: g.device.identity, From: own}, g.Confirm()
	}
	parsed := Must(framing.UnmarshalMLSMessage(message))
	if public, ok := parsed.AsPublic(); ok {
		return g.processPublic(public)
	}
	private, ok := parsed.AsPrivate()
	if !ok {
		return Received{}, fmt.Errorf("process: wire format %d is neither a commit nor a message", parsed.WireFormat())
	}
	// The library ratchets before it checks the epoch, and then reports a failed tag. Check the
	// epoch first for a clear error.
	if private.Epoch != g.Epoch() {
		return Received{}, fmt.Errorf("process: message of epoch %d in epoch %d", private.Epoch, g.Epoch())
	}
	if private.ContentType == framing.ContentTypeCommit {
		g.Discard()
		return Received{Commit: true, Epoch: private.Epoch}, g.state.ProcessPrivateMessage(private)
	}
	if private.ContentType == framing.ContentTypeProposal {
		return g.receivePrivate(private)
	}
	plaintext, _, leaf, err := g.state.ReceiveApplicationMessage(private)
	if err != nil {
		return Received{}, fmt.Errorf("process: %w", err)
	}
	from, ok := g.leafAt(uint32(leaf))
	if !ok {
		return Received{}, fmt.Errorf("process: sender %d is no member", leaf)
	}
	return Received{Epoch: private.Epoch, Sender: from.Identity, From: from, Plaintext: plaintext}, nil
}

func (g *goGroup) leafAt(index uint32) (Leaf, bool) {
	member, ok := g.state.GetMember(group.LeafNodeIndex(index))
	if !ok {
		return Leaf{}, false
	}
	return Leaf{Index: index, Identity: string(member.Credential.Identity),
		SignatureKey: g.state.MemberSigningKey(member.LeafIndex)}, true
}

func (g *goGroup) processPublic(message *framing.PublicMessage) (Received, error) {
	proposal := message.Content.ContentType() == framing.ContentTypeProposal
	if message.Content.Epoch != g.Epoch() {
		return Received{}, fmt.Errorf("process: %s of epoch %d in epoch %d",
			map[bool]string{true: "proposal", false: "commit"}[proposal], message.Content.Epoch, g.Epoch())
	}
	if proposal {
		return g.receivePublic(message), nil
	}
	if message.Content.ContentType() != framing.ContentTypeCommit {
		return Received{}, fmt.Errorf("process: unexpected public content type %d", message.Content.ContentType())
	}
	got := Received{Commit: true, Epoch: message.Content.Epoch}
	got.External = message.Content.Sender.Type == framing.SenderTypeNewMemberCommit
	if got.External {
		from, err := entering(message)
		if err != nil {
			return Received{}, fmt.Errorf("process: %w", err)
		}
		got.From = from
	} else {
		got.From, _ = g.leafAt(message.Content.Sender.LeafIndex)
	}
	g.Discard()
	if err := g.state.ProcessPublicMessage(message); err != nil {
		return Received{}, fmt.Errorf("process commit of epoch %d: %w", message.Content.Epoch, err)
	}
	return got, nil
}

// entering reads the leaf that an external commit adds. It has no index yet.
func entering(message *framing.PublicMessage) (Leaf, error) {
	data, _ := message.Content.CommitData()
	commit, err := group.UnmarshalCommit(data)
	if err != nil {
		return Leaf{}, fmt.Errorf("an external commit: %w", err)
	}
	if commit.Path == nil || commit.Path.LeafNode == nil || commit.Path.LeafNode.Credential == nil {
		return Leaf{}, errors.New("an external commit without a path")
	}
	leaf := commit.Path.LeafNode
	return Leaf{Identity: string(leaf.Credential.Identity), SignatureKey: leaf.SignatureKeyRaw}, nil
}

func (g *goGroup) Stage(change Change) (*Staged, error) {
	var added []*keypackages.KeyPackage
	for _, message := range change.Add {
		kp, err := readPackage(message)
		if err != nil {
			return nil, fmt.Errorf("stage: %w", err)
		}
		added = append(added, kp)
	}
	return g.stage(change, added, func(next *group.Group) (err error) {
		defer Catch(&err)
		for _, leaf := range change.Remove {
			Must(next.RemoveMember(group.LeafNodeIndex(leaf)))
		}
		for _, kp := range added {
			Must(next.AddMember(kp))
		}
		return nil
	})
}

func (g *goGroup) stage(change Change, added []*keypackages.KeyPackage,
	propose func(*group.Group) error) (_ *Staged, err error) {
	defer Catch(&err)
	next, err := copyWith(g.state, g.committable(change))
	Check(errs.Wrap(err, "stage"))
	Check(errs.Wrap(propose(next), "stage"))
	signer := g.device.signer
	commit, message, err := g.frameCommit(next)
	Check(errs.Wrap(err, "stage commit"))
	Check(errs.Wrap(next.MergeCommit(commit), "stage merge"))
	info, err := next.GetGroupInfo(signer)
	Check(errs.Wrap(err, "stage group info"))
	pending := &pendingCommit{next: next, Staged: Staged{
		Epoch:     next.Epoch().AsUint64(),
		Commit:    message,
		GroupInfo: wrap(formatGroupInfo, info.Marshal()),
	}}
	if len(added) > 0 {
		welcome, err := next.CreateWelcomeWithOpts(added, signer,
			group.WithJoinerSecret(commit.JoinerSecret()), group.WithPSKIDs(commit.PskIDs()),
			group.WithPSKSecret(commit.RawPskSecret()), group.WithStagedCommit(commit))
		if err != nil {
			return nil, fmt.Errorf("stage welcome: %w", err)
		}
		pending.Welcome = wrap(formatWelcome, welcome.Marshal())
	}
	g.pending = pending
	return &pending.Staged, nil
}

// frameCommit commits next's proposals and frames the commit as the device wants it. The merge
// replaces the secrets of the old epoch, so a PrivateMessage must be encrypted before the merge.
// Encrypting uses up ratchet keys of the copy only. That is safe, because the log accepts one
// commit per epoch.
func (g *goGroup) frameCommit(next *group.Group) (_ *group.StagedCommit, _ []byte, err error) {
	defer Catch(&err)
	format := framing.WireFormatPublicMessage
	if g.device.hidden {
		format = framing.WireFormatPrivateMessage
	}
	signer := g.device.signer
	commit := Must(next.CommitWithFormat(signer, signer.PublicKey(), nil, format))
	content := commit.AuthenticatedContent()
	if !g.device.hidden {
		public := &framing.PublicMessage{Content: content.Content, Auth: content.Auth, MembershipTag: commit.MembershipTag()}
		return commit, framing.NewMLSMessagePublic(public).Marshal(), nil
	}
	private := Must(framing.Encrypt(framing.EncryptParams{
		AuthContent: content, SenderLeafIndex: uint32(next.OwnLeafIndex()), CipherSuite: next.CipherSuite(),
		PaddingSize: next.PaddingSize(), SenderDataSecret: next.EpochSecrets().SenderDataSecret,
		SecretTree: next.SecretTree(),
	}))
	return commit, framing.NewMLSMessagePrivate(private).Marshal(), nil
}

func (g *goGroup) Pending() *Staged {
	if g.pending == nil {
		return nil
	}
	return &g.pending.Staged
}

func (g *goGroup) Confirm() error {
	if g.pending == nil {
		return errors.New("confirm: no commit is staged")
	}
	g.state, g.pending = g.pending.next, nil
	return nil
}

func (g *goGroup) Discard() { g.pending = nil }

func (d *goDevice) JoinExternal(groupInfo []byte, prior int) (_ *Staged, err error) {
	defer CatchIn(&err, "join external")
	info, _ := Must2(readGroupInfo(groupInfo))
	var replaced *group.LeafNodeIndex
	if prior != NoLeaf {
		leaf := group.LeafNodeIndex(prior)
		replaced = &leaf
	}
	state, commit := Must2(group.ExternalCommit(info, d.suite, d.signer, d.signer.PublicKey(), replaced,
		d.cred.Credential))
	content := commit.AuthenticatedContent()
	state = Must(withConfirmation(state, content.Auth.ConfirmationTag))
	next := Must(state.GetGroupInfo(d.signer))
	message := framing.NewMLSMessagePublic(&framing.PublicMessage{Content: content.Content, Auth: content.Auth})
	joining := &pendingCommit{next: state, Staged: Staged{
		Epoch: state.Epoch().AsUint64(), Commit: message.Marshal(), GroupInfo: wrap(formatGroupInfo, next.Marshal()),
	}}
	d.joining[hex.EncodeToString(state.ID().AsSlice())] = joining
	return &joining.Staged, nil
}

// withConfirmation sets the confirmation_tag of a group's epoch. The library leaves the tag out
// when a device enters a group by external commit. Without the tag, the epoch's GroupInfo and the
// next transcript hash are wrong.
func withConfirmation(g *group.Group, tag []byte) (_ *group.Group, err error) {
	defer Catch(&err)
	raw := Must(g.MarshalState())
	var state group.StateData
	Check(json.Unmarshal(raw, &state))
	state.ConfirmationTag = tag
	raw = Must(json.Marshal(state))
	return group.UnmarshalGroupState(raw)
}

func (d *goDevice) ConfirmJoin(groupID []byte) (Group, error) {
	joining, ok := d.joining[hex.EncodeToString(groupID)]
	if !ok {
		return nil, errors.New("confirm join: no external commit is staged")
	}
	d.DiscardJoin(groupID)
	return d.adopt(joining.next), nil
}

func (d *goDevice) DiscardJoin(groupID []byte) { delete(d.joining, hex.EncodeToString(groupID)) }
