package clientsim

import (
	"context"
	"slices"

	"mlsd/api/mlsapi"
)

// tagBytes is the end of a PublicMessage that only members can check: the
// confirmation_tag and the membership_tag, of 32 bytes each in every suite here,
// with their lengths.
const tagBytes = 2 * (1 + 32)

// bitFlips is how many bits of an object are tried, one at a time.
const bitFlips = 24

// MaliciousCommit has a member submit commits that are not what they should be:
// of another time, of another group, of another member, damaged, or beyond its
// rights. All are refused by name, and the group goes on.
func MaliciousCommit(ctx context.Context, w *World) error {
	m, err := w.mischief(ctx)
	if err != nil {
		return err
	}
	for _, try := range []func(context.Context) error{
		m.wrongTime, m.wrongGroup, m.wrongSender, m.stolen, m.damaged, m.overreach, m.wrongMethod, m.byRemoved,
	} {
		if err := try(ctx); err != nil {
			return err
		}
		if err := m.goOn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wrongTime: a commit of the past, the same with the present epoch written over
// it, and one of the future.
func (m *mischief) wrongTime(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	old := *staged
	if err := m.bob.Rotate(ctx, m.convo); err != nil {
		return err
	}
	if err := m.mallory.Sync(ctx, m.convo); err != nil {
		return err
	}
	m.submitted(ctx, "a commit of the last epoch", &old, mlsapi.ErrEpochMismatch)
	now, next := group.Epoch(), group.Epoch()+1
	redated, err := forgeCommit(group, old.Commit, forgery{epoch: &now})
	if err != nil {
		return err
	}
	m.submitted(ctx, "a commit of the last epoch with another epoch in its header", &Staged{Commit: redated}, mlsapi.ErrInvalidCommit)
	if staged, err = group.StageUpdate(); err != nil {
		return err
	}
	ahead, err := forgeCommit(group, staged.Commit, forgery{epoch: &next, signed: true})
	if err != nil {
		return err
	}
	m.submitted(ctx, "a commit of the next epoch", &Staged{Commit: ahead}, mlsapi.ErrEpochMismatch)
	return nil
}

// wrongGroup: a commit of a group that mallory has with somebody else, and things
// that are no commit.
func (m *mischief) wrongGroup(ctx context.Context) error {
	other, err := m.mallory.Create(ctx)
	if err != nil {
		return err
	}
	elsewhere, err := m.mallory.Group(other)
	if err != nil {
		return err
	}
	staged, err := elsewhere.StageUpdate()
	if err != nil {
		return err
	}
	m.submitted(ctx, "a commit of another group", staged, mlsapi.ErrInvalidCommit)
	elsewhere.Discard()
	group, err := m.group()
	if err != nil {
		return err
	}
	message, err := group.Encrypt([]byte("not a commit"))
	if err != nil {
		return err
	}
	m.submitted(ctx, "an application message as a commit", &Staged{Commit: message}, mlsapi.ErrInvalidCommit)
	info, err := group.GroupInfo()
	if err != nil {
		return err
	}
	m.submitted(ctx, "a GroupInfo as a commit", &Staged{Commit: info}, mlsapi.ErrInvalidCommit)
	if staged, err = group.StageUpdate(); err != nil {
		return err
	}
	m.refused(ctx, "a commit as an application message", m.mallory,
		sendCall(m.convo, m.mallory.Account.DID, group.Epoch(), staged.Commit, newKey()), mlsapi.ErrInvalidMessage)
	return nil
}

// wrongSender: mallory's commits in the name of others: of bob's leaf, of a leaf
// that does not exist, and with bob's credential on its own leaf.
func (m *mischief) wrongSender(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	bobs, err := m.bob.Group(m.convo)
	if err != nil {
		return err
	}
	for what, leaf := range map[string]uint32{"another's leaf": bobs.Own(), "a leaf beyond the tree": 77} {
		forged, err := forgeCommit(group, staged.Commit, forgery{sender: &leaf, signed: true})
		if err != nil {
			return err
		}
		m.submitted(ctx, "a commit in the name of "+what, &Staged{Commit: forged}, mlsapi.ErrInvalidCommit)
	}
	if staged, err = stageAs(group, m.bob.Account.DID.String()); err != nil {
		return err
	}
	m.submitted(ctx, "a commit that puts another's name on the committer's leaf", staged, mlsapi.ErrInvalidCommit)
	return nil
}

// stolen: bob's commit under mallory's account. Bob's own is taken all the same.
func (m *mischief) stolen(ctx context.Context) error {
	if err := m.bob.Sync(ctx, m.convo); err != nil {
		return err
	}
	d, err := m.bob.DraftCommit(m.convo, Change{})
	if err != nil {
		return err
	}
	in, err := mlsapi.DecodeSubmitCommitInput(d.Call.Body)
	if err != nil {
		return err
	}
	m.submitted(ctx, "another's commit", &Staged{Commit: in.Commit}, mlsapi.ErrInvalidCommit)
	m.submitted(ctx, "another's commit and GroupInfo", &Staged{Commit: in.Commit, GroupInfo: in.GroupInfo}, mlsapi.ErrInvalidCommit)
	if _, err := m.bob.Deliver(ctx, d); err != nil {
		m.w.Broken("a commit that another has tried to submit: %v", err)
	}
	return m.w.SyncAll(ctx, m.convo, m.bob, m.mallory)
}

// damaged: one bit of what the signature covers, or of the signature, is wrong.
func (m *mischief) damaged(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	for range bitFlips {
		m.submitted(ctx, "a commit with one bit flipped", &Staged{Commit: m.flipped(staged.Commit, tagBytes)},
			mlsapi.ErrInvalidCommit, mlsapi.ErrEpochMismatch)
	}
	m.submitted(ctx, "a commit that is cut short", &Staged{Commit: staged.Commit[:len(staged.Commit)-1]}, mlsapi.ErrInvalidCommit)
	m.submitted(ctx, "a commit with more behind it", &Staged{Commit: append(slices.Clone(staged.Commit), 0)}, mlsapi.ErrInvalidCommit)
	return nil
}

// overreach: commits that are sound, and not mallory's right. Carol's removal
// would be the creator's, but not in the place of bob's.
func (m *mischief) overreach(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	bob, carol := m.bob.Account.DID, m.carol.Account.DID
	staged, err := group.StageRemove(bob.String())
	if err != nil {
		return err
	}
	m.submitted(ctx, "the removal of another member", staged, mlsapi.ErrNotPermitted)
	m.refused(ctx, "the removal of another member with leaveConvo", m.mallory, removeCall(m.convo, bob, staged, newKey()), mlsapi.ErrNotPermitted)
	m.mallory.device.HideHandshakes(true)
	if staged, err = group.StageRemove(bob.String()); err != nil {
		return err
	}
	m.submitted(ctx, "the hidden removal of another member, with the GroupInfo that shows it", staged, mlsapi.ErrNotPermitted)
	m.mallory.device.HideHandshakes(false)
	stranger, err := m.ownedBy(m.bob.Account.DID)
	if err != nil {
		return err
	}
	kp, err := stranger.KeyPackage()
	if err != nil {
		return err
	}
	if staged, err = group.StageAdd(kp.Message); err != nil {
		return err
	}
	m.submitted(ctx, "a device that is said to be another member's", staged, mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	if err := m.alice.Sync(ctx, m.convo); err != nil {
		return err
	}
	creators, err := m.alice.Group(m.convo)
	if err != nil {
		return err
	}
	if staged, err = creators.StageRemove(carol.String()); err != nil {
		return err
	}
	m.refused(ctx, "the removal of another than the one that is named", m.alice, removeCall(m.convo, bob, staged, newKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	creators.Discard()
	return nil
}

// wrongMethod: a member's commit as an external one and the other way round, and
// external commits that take another's place or bear another's name.
func (m *mischief) wrongMethod(ctx context.Context) error {
	group, err := m.group()
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	m.refused(ctx, "a member's commit as an external one", m.mallory, externalCall(m.convo, staged, newKey()), mlsapi.ErrInvalidCommit)
	info, err := group.GroupInfo()
	if err != nil {
		return err
	}
	bobs, err := m.bob.Group(m.convo)
	if err != nil {
		return err
	}
	second, err := m.ownedBy(m.mallory.Account.DID)
	if err != nil {
		return err
	}
	if staged, err = second.JoinExternal(info, NoLeaf); err != nil {
		return err
	}
	m.submitted(ctx, "an external commit as a member's", staged, mlsapi.ErrInvalidCommit)
	for range bitFlips / 4 {
		damaged := Staged{Commit: m.flipped(staged.Commit, 1+32)}
		m.refused(ctx, "an external commit with one bit flipped", m.mallory, externalCall(m.convo, &damaged, newKey()),
			mlsapi.ErrInvalidCommit, mlsapi.ErrEpochMismatch)
	}
	if staged, err = second.JoinExternal(info, int(bobs.Own())); err != nil {
		return err
	}
	m.refused(ctx, "an external commit in the place of another's leaf", m.mallory, externalCall(m.convo, staged, newKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	mask, err := m.ownedBy(m.bob.Account.DID)
	if err != nil {
		return err
	}
	if staged, err = mask.JoinExternal(info, NoLeaf); err != nil {
		return err
	}
	m.refused(ctx, "an external commit in another's name", m.mallory, externalCall(m.convo, staged, newKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	return nil
}

// byRemoved: carol is removed, and goes on committing.
func (m *mischief) byRemoved(ctx context.Context) error {
	if err := m.carol.Sync(ctx, m.convo); err != nil {
		return err
	}
	group, err := m.carol.Group(m.convo)
	if err != nil {
		return err
	}
	staged, err := group.StageUpdate()
	if err != nil {
		return err
	}
	if err := m.alice.Remove(ctx, m.convo, m.carol.Account.DID); err != nil {
		return err
	}
	m.refused(ctx, "a removed member's commit", m.carol, submitCall(m.convo, staged, newKey()), mlsapi.ErrNotMember)
	now := group.Epoch() + 1
	redated, err := forgeCommit(group, staged.Commit, forgery{epoch: &now, signed: true})
	if err != nil {
		return err
	}
	m.refused(ctx, "a removed member's commit in the present epoch", m.carol, submitCall(m.convo, &Staged{Commit: redated}, newKey()),
		mlsapi.ErrNotMember)
	group.Discard()
	return nil
}
