package clientsim

import (
	"bytes"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// DraftAdd stages the commit that adds members and journals it.
func (p *Phone) DraftAdd(convo string, dids []syntax.DID, packages [][]byte) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindAdd, DIDs: dids},
		func(group Group) (*Staged, error) { return group.StageAdd(packages...) },
		func(staged *Staged, key string) Call { return addCall(convo, dids, staged, key) })
}

// DraftRemove stages the commit that removes one member, with all its devices,
// and journals it.
func (p *Phone) DraftRemove(convo string, did syntax.DID) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindRemove, DIDs: []syntax.DID{did}},
		func(group Group) (*Staged, error) { return group.StageRemove(did.String()) },
		func(staged *Staged, key string) Call { return removeCall(convo, did, staged, key) })
}

// DraftCommit stages a commit that leaves the roster as it is and journals it:
// a rotation of this device's keys, if nothing else, or a change to the leaves
// of its own account.
func (p *Phone) DraftCommit(convo string, change Change) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindCommit},
		func(group Group) (*Staged, error) { return group.Stage(change) },
		func(staged *Staged, key string) Call { return submitCall(convo, staged, key) })
}

func (p *Phone) draftCommit(convo string, d *Draft, stage func(Group) (*Staged, error), call func(*Staged, string) Call) (*Draft, error) {
	thread, group, err := p.open(convo)
	if err != nil {
		return nil, err
	}
	staged, err := stage(group)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	d.GroupID = thread.GroupID
	return p.journalCommit(convo, d, staged, call)
}

// DraftRejoin stages the external commit by which this device enters a convo of
// its account, and journals it. It takes away the leaf that was this device's
// before it lost its state, or that of the device in whose place it is.
func (p *Phone) DraftRejoin(convo string, groupInfo []byte) (*Draft, error) {
	if p.device == nil {
		return nil, ErrKilled
	}
	info, err := ReadInfo(groupInfo)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	staged, err := p.device.JoinExternal(groupInfo, p.priorLeaf(info))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return p.journalCommit(convo, &Draft{Kind: kindRejoin, GroupID: info.GroupID}, staged,
		func(staged *Staged, key string) Call { return externalCall(convo, staged, key) })
}

func (p *Phone) priorLeaf(info *Info) int {
	for _, leaf := range info.Leaves {
		if bytes.Equal(leaf.SignatureKey, p.device.SignatureKey()) || bytes.Equal(leaf.SignatureKey, p.former) {
			return int(leaf.Index)
		}
	}
	return NoLeaf
}

func (p *Phone) journalCommit(convo string, d *Draft, staged *Staged, call func(*Staged, string) Call) (*Draft, error) {
	if p.quiet {
		staged.GroupInfo = nil
	}
	d.Epoch, d.Digest, d.WithInfo = staged.Epoch, digestOf(staged.Commit), staged.GroupInfo != nil
	d.Call = call(staged, newKey())
	p.model.AttemptedCommit(convo, d.Digest, commit{
		sender: p.Account.DID, epoch: d.Epoch, public: isPublic(staged.Commit), withInfo: d.WithInfo,
	})
	return p.journal(d, nil)
}
