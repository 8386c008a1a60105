package client

import (
	"bytes"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// DraftAdd stages the commit that adds members and journals it. receipts are those of KeyPackages of
// other services.
func (p *Phone) DraftAdd(convo string, dids []syntax.DID, packages [][]byte, receipts ...string) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindAdd, DIDs: dids},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.StageAdd(packages...) },
		func(staged *mlsclient.Staged, key string) xrpc.Call {
			return xrpc.AddCall(convo, dids, staged, key, receipts...)
		})
}

// DraftInviteAgain stages the commit that replaces the leaves of a member that never joined, and
// journals it. It leaves out KeyPackages of the devices that it removes: they can be those of a
// device that is gone.
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

// DraftRemove stages the commit that removes one member, with all its devices,
// and journals it.
func (p *Phone) DraftRemove(convo string, did syntax.DID) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindRemove, DIDs: []syntax.DID{did}},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.StageRemove(did.String()) },
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.RemoveCall(convo, did, staged, key) })
}

// DraftCommit stages and journals a commit that leaves the roster as it is: a rotation of this
// device's keys, or a change to other leaves of its own account.
func (p *Phone) DraftCommit(convo string, change mlsclient.Change) (*Draft, error) {
	return p.draftCommit(convo, &Draft{Kind: kindCommit},
		func(group mlsclient.Group) (*mlsclient.Staged, error) { return group.Stage(change) },
		func(staged *mlsclient.Staged, key string) xrpc.Call { return xrpc.SubmitCall(convo, staged, key) })
}

// DraftStaged stages a commit that leaves the roster as it is by a function of the caller's, and
// journals it.
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
