package clientsim

import (
	"context"

	"mlsd/api/mlsapi"
)

// MaliciousGroupInfo has a member send sound commits with GroupInfos that are
// not what they should be: whoever joined by one would be in no group or in
// another. All are refused by name, and the group goes on.
func MaliciousGroupInfo(ctx context.Context, w *World) error {
	m, err := w.mischief(ctx)
	if err != nil {
		return err
	}
	for _, try := range []func(context.Context) error{m.forgedInfos, m.damagedInfos, m.foundingInfos, m.joiningInfos} {
		if err := try(ctx); err != nil {
			return err
		}
		if err := m.goOn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// informed has mallory submit a commit with this GroupInfo.
func (m *mischief) informed(ctx context.Context, what string, commit, info []byte) {
	m.submitted(ctx, what, &Staged{Commit: commit, GroupInfo: info}, mlsapi.ErrInvalidGroupInfo)
}

// forgedInfos: genuine GroupInfos of another epoch, of another commit and of
// another group, and one without a tree or in another's name.
func (m *mischief) forgedInfos(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	present, err := group.GroupInfo()
	if err != nil {
		return err
	}
	other, err := m.mallory.Create(ctx)
	if err != nil {
		return err
	}
	elsewhere, err := m.mallory.Group(other)
	if err != nil {
		return err
	}
	foreign, err := elsewhere.StageUpdate()
	if err != nil {
		return err
	}
	elsewhere.Discard()
	lost, err := group.StageUpdate()
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	m.informed(ctx, "a GroupInfo of the epoch before", staged.Commit, present)
	m.informed(ctx, "a GroupInfo of another group", staged.Commit, foreign.GroupInfo)
	m.informed(ctx, "a GroupInfo of another commit", staged.Commit, lost.GroupInfo)
	m.informed(ctx, "a commit as a GroupInfo", staged.Commit, staged.Commit)
	bobs, err := m.bob.Group(m.convo)
	if err != nil {
		return err
	}
	leaf, nowhere := bobs.Own(), uint32(77)
	for what, forged := range map[string]infoForgery{
		"a GroupInfo without ratchet_tree":   {noTree: true},
		"a GroupInfo in another's name":      {signer: &leaf},
		"a GroupInfo in the name of no leaf": {signer: &nowhere},
	} {
		info, err := forgeInfo(group, forged)
		if err != nil {
			return err
		}
		m.informed(ctx, what, staged.Commit, info)
	}
	return nil
}

// damagedInfos: one bit is wrong. The signature covers all the others.
func (m *mischief) damagedInfos(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	for _, hidden := range []bool{false, true} {
		m.mallory.device.HideHandshakes(hidden)
		staged, err := group.StageUpdate()
		if err != nil {
			return err
		}
		for range bitFlips {
			m.informed(ctx, "a GroupInfo with one bit flipped", staged.Commit, m.flipped(staged.GroupInfo, 0))
		}
		m.informed(ctx, "a GroupInfo that is cut short", staged.Commit, staged.GroupInfo[:len(staged.GroupInfo)-1])
	}
	m.mallory.device.HideHandshakes(false)
	return nil
}

// foundingInfos: mallory announces groups with GroupInfos of others' and of
// groups that have other people in them.
func (m *mischief) foundingInfos(ctx context.Context) error {
	shared, err := m.group()
	if err != nil {
		return err
	}
	stolen, err := m.bob.GroupInfo(ctx, m.convo)
	if err != nil {
		return err
	}
	fresh, err := m.mallory.device.Create([]byte("a group of mallory's own"))
	if err != nil {
		return err
	}
	defer m.mallory.device.Forget(fresh.ID())
	genuine, err := fresh.GroupInfo()
	if err != nil {
		return err
	}
	kp, err := m.bob.device.KeyPackage()
	if err != nil {
		return err
	}
	crowded, err := fresh.StageAdd(kp.Message)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		what    string
		group   []byte
		founded Staged
	}{
		{"a convo with the GroupInfo of another group", fresh.ID(), Staged{GroupInfo: stolen}},
		{"a convo with a GroupInfo that says another epoch", fresh.ID(), Staged{GroupInfo: genuine, Epoch: 5}},
		{"a convo with a GroupInfo with one bit flipped", fresh.ID(), Staged{GroupInfo: m.flipped(genuine, 0)}},
		{"a convo whose GroupInfo has people in it that are not on the roster", fresh.ID(), Staged{GroupInfo: crowded.GroupInfo, Epoch: 1}},
		{"a convo of a group that exists, with another's GroupInfo", shared.ID(), Staged{GroupInfo: stolen, Epoch: shared.Epoch()}},
	} {
		m.refused(ctx, f.what, m.mallory, createCall(f.group, m.w.suite, nil, &f.founded, newKey()),
			mlsapi.ErrInvalidGroupInfo, mlsapi.ErrGroupAlreadyExists)
	}
	return nil
}

// joiningInfos: a device that lets itself in brings GroupInfos that are not those
// of the epoch that it makes.
func (m *mischief) joiningInfos(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	info, err := group.GroupInfo()
	if err != nil {
		return err
	}
	second, err := m.ownedBy(m.mallory.Account.DID)
	if err != nil {
		return err
	}
	staged, err := second.JoinExternal(info, NoLeaf)
	if err != nil {
		return err
	}
	for what, wrong := range map[string][]byte{
		"the GroupInfo that it was made from": info, "a GroupInfo with one bit flipped": m.flipped(staged.GroupInfo, 0),
	} {
		m.refused(ctx, "an external commit with "+what, m.mallory,
			externalCall(m.convo, &Staged{Commit: staged.Commit, GroupInfo: wrong}, newKey()), mlsapi.ErrInvalidGroupInfo)
	}
	return nil
}
