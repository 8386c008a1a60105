package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// draftKind says what happens when a draft is acknowledged.
type draftKind string

const (
	kindPublish     draftKind = "publish"
	kindCreate      draftKind = "create"
	kindSend        draftKind = "send"
	kindAdd         draftKind = "add"
	kindRemove      draftKind = "remove"
	kindLeave       draftKind = "leave"
	kindCommit      draftKind = "commit"
	kindRejoin      draftKind = "rejoin"
	kindPublishMany draftKind = "stock"
)

// Draft is a write in the outbox. Its bytes and key are on the disk before they are sent.
type Draft struct {
	Kind    draftKind      `json:"kind"`
	Call    xrpc.Call      `json:"call"`
	GroupID []byte         `json:"groupId,omitempty"`
	Epoch   uint64         `json:"epoch,omitempty"` // the epoch of a message, or the epoch that a commit creates
	Text    string         `json:"text,omitempty"`
	Digest  history.Digest `json:"digest,omitzero"` // digest of the message or the commit
	DIDs    []syntax.DID   `json:"dids,omitempty"`  // members that are added or removed
	// WithInfo is set if the draft carries the group's new GroupInfo.
	WithInfo bool `json:"withInfo,omitempty"`
	// Forked is set if the device has left the branch of the group that the bytes belong to. Another
	// epoch with the same number can come, and nobody in that epoch can read the bytes.
	Forked bool `json:"forked,omitempty"`
}

// Convo is the convo that the draft writes to. It is empty for a create.
func (d *Draft) Convo() string { return d.Call.Convo }

// Journal writes a draft to the outbox, in one write with the MLS state that made it. After that,
// neither a lost answer nor a killed app can lead to a second ciphertext of the same text under the
// same key.
func (p *Phone) Journal(d *Draft, changes map[string][]byte) (*Draft, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("%s: journal: %w", p.Name, err)
	}
	if changes == nil {
		changes = map[string][]byte{}
	}
	changes[OutboxPrefix+d.Call.Key] = data
	return d, p.Save(changes)
}

func (p *Phone) readDraft(key string) (*Draft, error) {
	data, ok := p.Disk.Read(OutboxPrefix + key)
	if !ok {
		return nil, fmt.Errorf("%s: no draft %s", p.Name, key)
	}
	d := &Draft{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("%s: draft %s: %w", p.Name, key, err)
	}
	return d, nil
}

// DraftPublish makes a KeyPackage and journals its publication.
func (p *Phone) DraftPublish() (_ *Draft, err error) {
	defer Catch(&err)
	if p.Device == nil {
		return nil, ErrKilled
	}
	kp := Must(p.Device.KeyPackage())
	return p.DraftPackage(kp)
}

// DraftPackage journals the publication of a given KeyPackage.
func (p *Phone) DraftPackage(kp mlsclient.KeyPackage) (*Draft, error) {
	return p.Journal(&Draft{Kind: kindPublish, Call: xrpc.PublishCall(kp, p.Suite, xrpc.NewKey())}, nil)
}

// DraftSend encrypts a text in the group's present epoch and journals it.
func (p *Phone) DraftSend(convo, text string) (_ *Draft, err error) {
	defer Catch(&err)
	_, group := Must2(p.Open(convo))
	ciphertext, err := group.Encrypt([]byte(text))
	Check(errs.Wrap(err, "%s", p.Name))
	d := &Draft{
		Kind: kindSend, Text: text, Epoch: group.Epoch(), Digest: sha256.Sum256(ciphertext),
		Call: xrpc.SendCall(convo, p.Account.DID, group.Epoch(), ciphertext, xrpc.NewKey()),
	}
	p.Model.Attempted(convo, text, d.Digest)
	return p.Journal(d, map[string][]byte{ownName(d.Digest): []byte(text)})
}

// DraftProposal makes a proposal in clear and journals it. Its text is ProposalText.
func (p *Phone) DraftProposal(convo string, kind mlsclient.Proposal, argument []byte) (_ *Draft, message []byte,
	err error) {
	defer Catch(&err)
	_, group := Must2(p.Open(convo))
	proposer, ok := group.(mlsclient.Proposer)
	if !ok {
		return nil, nil, fmt.Errorf("%s: the library makes no proposals", p.Name)
	}
	if message, err = proposer.Propose(kind, argument); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	d := &Draft{
		Kind: kindSend, Text: ProposalText(message), Epoch: group.Epoch(), Digest: sha256.Sum256(message),
		Call: xrpc.SendCall(convo, p.Account.DID, group.Epoch(), message, xrpc.NewKey()),
	}
	p.Model.Attempted(convo, d.Text, d.Digest)
	d, err = p.Journal(d, map[string][]byte{ownName(d.Digest): []byte(d.Text)})
	return d, message, err
}

// ProposalText stands for a proposal in the model and in inboxes, where messages have their text.
func ProposalText(message []byte) string {
	return fmt.Sprintf("proposal %x", sha256.Sum256(message))
}

// ownName names the file that holds the text of this phone's own ciphertext. No MLS client can
// decrypt its own messages.
func ownName(d history.Digest) string { return fmt.Sprintf("%s%x", ownPrefix, d[:]) }

// DraftCreate starts a group and journals its convo. packages are the claimed KeyPackages of the
// members. receipts are the receipts of KeyPackages from other services.
func (p *Phone) DraftCreate(members []syntax.DID, packages [][]byte, receipts ...string) (_ *Draft, err error) {
	defer CatchIn(&err, "%s", p.Name)
	if p.Device == nil {
		return nil, ErrKilled
	}
	groupID := make([]byte, 16)
	Must(rand.Read(groupID))
	group := Must(p.Device.Create(groupID))
	founded := &mlsclient.Staged{}
	if len(packages) > 0 {
		founded, err = group.StageAdd(packages...)
	} else {
		founded.GroupInfo, err = group.GroupInfo()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	if p.HidesGroupInfo {
		founded.GroupInfo = nil
	}
	return p.Journal(&Draft{
		Kind: kindCreate, GroupID: groupID, DIDs: members, Epoch: founded.Epoch, WithInfo: founded.GroupInfo != nil,
		Call: xrpc.CreateCall(groupID, p.Suite, members, founded, xrpc.NewKey(), receipts...),
	}, nil)
}

// DraftLeave journals that this account leaves a convo. It makes no commit, because an MLS member
// cannot commit its own removal.
func (p *Phone) DraftLeave(convo string) (*Draft, error) {
	if _, _, err := p.Open(convo); err != nil {
		return nil, err
	}
	return p.Journal(&Draft{
		Kind: kindLeave, DIDs: []syntax.DID{p.Account.DID}, Call: xrpc.LeaveCall(convo, xrpc.NewKey()),
	}, nil)
}

// Deliver sends a draft by the retry rule, and then acknowledges or drops it. A dropped draft must
// never take effect.
func (p *Phone) Deliver(ctx context.Context, d *Draft) (xrpc.Answer, error) {
	answer, err := p.Net.Do(ctx, p.Account, d.Call)
	if err == nil {
		return answer, p.Acknowledge(ctx, d, answer)
	}
	var named *xrpc.CallError
	if errors.As(err, &named) && named.Status/100 == 4 {
		if dropErr := p.Drop(d); dropErr != nil {
			return xrpc.Answer{}, errors.Join(err, dropErr)
		}
	}
	return xrpc.Answer{}, err
}

// Drop removes a refused draft from the outbox, and discards its staged commit.
func (p *Phone) Drop(d *Draft) error {
	if p.Device == nil {
		return ErrKilled
	}
	switch d.Kind {
	case kindSend:
		p.Model.Refused(d.Convo(), d.Digest)
	case kindCreate, kindReset:
		p.Device.Forget(d.GroupID)
	case kindAdd, kindRemove, kindCommit:
		p.Model.Refused(d.Convo(), d.Digest)
		if group, ok := p.Device.Group(d.GroupID); ok {
			group.Discard()
		}
	case kindRejoin:
		p.Model.Refused(d.Convo(), d.Digest)
		p.Device.DiscardJoin(d.GroupID)
	}
	return p.Save(map[string][]byte{OutboxPrefix + d.Call.Key: nil})
}

// Acknowledge applies an answer and removes the draft from the outbox, in one write. An accepted
// commit is not merged here. It is merged when the phone reads it in the log, after the messages
// before it.
func (p *Phone) Acknowledge(ctx context.Context, d *Draft, answer xrpc.Answer) error {
	if p.Device == nil {
		return ErrKilled
	}
	changes := map[string][]byte{OutboxPrefix + d.Call.Key: nil}
	var err error
	switch d.Kind {
	case kindPublish:
		_, err = xrpc.Decode[mlsapi.PublishKeyPackageOutput](answer.Body)
	case kindPublishMany:
		_, err = xrpc.Decode[mlsapi.PublishKeyPackagesOutput](answer.Body)
	case kindCreate:
		err = p.acknowledgeCreate(d, answer, changes)
	case kindReset:
		err = p.acknowledgeReset(d, answer, changes)
	case kindSend:
		err = p.acknowledgeSend(ctx, d, answer)
	case kindAdd:
		err = p.acknowledgeAdd(d, answer)
	case kindCommit:
		err = p.acknowledgeCommit(d, answer)
	case kindRejoin:
		err = p.acknowledgeRejoin(d, answer, changes)
	case kindRemove, kindLeave:
		err = p.acknowledgeLeave(d, answer)
	}
	if err != nil {
		return fmt.Errorf("%s: %s answered %.200q: %w", p.Name, d.Call.Method, answer.Body, err)
	}
	p.Model.Acknowledged(p.Account, d.Call)
	if err := p.keep(d, changes); err != nil {
		return err
	}
	return p.Save(changes)
}

// DraftAdd stages and journals the commit that adds members. receipts are the receipts of
// KeyPackages from other services.
func (p *Phone) DraftAdd(convo string, dids []syntax.DID, packages [][]byte, receipts ...string) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindAdd, DIDs: dids},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.StageAdd(packages...) },
		func(staged *mlsclient.Staged, key string) xrpc.Call {
			return xrpc.AddCall(convo, dids, staged, key, receipts...)
		})
}

// DraftInviteAgain stages and journals the commit that replaces the leaves of a member that never
// joined. It leaves out the KeyPackages of the removed devices, because such a device may be gone.
func (p *Phone) DraftInviteAgain(convo string, did syntax.DID, packages [][]byte) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindAdd, DIDs: []syntax.DID{did}},
		func(group mlsclient.Group) (_ *mlsclient.Staged, err error) {
			defer Catch(&err)
			var change mlsclient.Change
			gone := map[string]bool{}
			for _, leaf := range group.Leaves() {
				if leaf.Identity == did.String() {
					change.Remove = append(change.Remove, leaf.Index)
					gone[string(leaf.SignatureKey)] = true
				}
			}
			for _, kp := range packages {
				leaf := Must(mlsclient.PackageLeaf(kp))
				if !gone[string(leaf.SignatureKey)] {
					change.Add = append(change.Add, kp)
				}
			}
			if len(change.Add) == 0 {
				return nil, fmt.Errorf("invite %s again: %w", did, ErrNoPackages)
			}
			return group.Stage(change)
		},
		func(staged *mlsclient.Staged, key string) xrpc.Call {
			return xrpc.AddCall(convo, []syntax.DID{did}, staged, key)
		})
}

// DraftRemove stages and journals the commit that removes one member with all its devices.
func (p *Phone) DraftRemove(convo string, did syntax.DID) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindRemove, DIDs: []syntax.DID{did}},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.StageRemove(did.String()) },
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.RemoveCall(convo, did, staged, key) })
}

// DraftCommit stages and journals a commit that does not change the roster: a rotation of this
// device's keys, or a change to other leaves of this account.
func (p *Phone) DraftCommit(convo string, change mlsclient.Change) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindCommit},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.Stage(change) },
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.SubmitCall(convo, staged, key) })
}

// DraftStaged stages a commit with the caller's function, and journals it. The commit does not
// change the roster.
func (p *Phone) DraftStaged(convo string, stage func(mlsclient.Group) (*mlsclient.Staged, error)) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindCommit}, stage,
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.SubmitCall(convo, staged, key) })
}

func (p *Phone) draftCommit(convo string, d *Draft, stage func(mlsclient.Group) (*mlsclient.Staged, error),
	call func(*mlsclient.Staged, string) xrpc.Call) (_ *Draft, err error) {
	defer Catch(&err)
	thread, group := Must2(p.Open(convo))
	staged, err := stage(group)
	Check(errs.Wrap(err, "%s", p.Name))
	d.GroupID = thread.GroupID
	return p.journalCommit(convo, d, staged, call)
}

// DraftRejoin stages and journals the external commit by which this device enters a convo of its
// account. The commit removes the leaf that this device had before it lost its state, or the leaf
// of the device that it replaces.
func (p *Phone) DraftRejoin(convo string, groupInfo []byte) (_ *Draft, err error) {
	defer CatchIn(&err, "%s", p.Name)
	if p.Device == nil {
		return nil, ErrKilled
	}
	info := Must(mlsclient.ReadInfo(groupInfo))
	staged := Must(p.Device.JoinExternal(groupInfo, p.PriorLeaf(info)))
	return p.journalCommit(convo, &Draft{Kind: kindRejoin, GroupID: info.GroupID}, staged,
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.ExternalCall(convo, staged, key) })
}

// PriorLeaf returns the leaf that a rejoin of this device removes, or NoLeaf.
func (p *Phone) PriorLeaf(info *mlsclient.Info) int {
	for _, leaf := range info.Leaves {
		if bytes.Equal(leaf.SignatureKey, p.Device.SignatureKey()) || bytes.Equal(leaf.SignatureKey, p.FormerKey) {
			return int(leaf.Index)
		}
	}
	return mlsclient.NoLeaf
}

func (p *Phone) journalCommit(convo string, d *Draft, staged *mlsclient.Staged,
	call func(*mlsclient.Staged, string) xrpc.Call) (*Draft, error) {
	if p.HidesGroupInfo {
		staged.GroupInfo = nil
	}
	if p.SpoilsWelcomes && staged.Welcome != nil {
		staged.Welcome = mlsclient.SpoilWelcome(staged.Welcome)
	}
	d.Epoch, d.Digest, d.WithInfo = staged.Epoch, history.DigestOf(staged.Commit), staged.GroupInfo != nil
	d.Call = call(staged, xrpc.NewKey())
	p.Model.AttemptedCommit(convo, d.Digest, history.Commit{
		Sender: p.Account.DID, Epoch: d.Epoch, Public: mlsclient.IsPublic(staged.Commit), WithInfo: d.WithInfo,
	})
	return p.Journal(d, nil)
}
