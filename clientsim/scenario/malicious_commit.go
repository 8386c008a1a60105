package scenario

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// tagBytes is the end of a PublicMessage that only members can check: the confirmation_tag and the
// membership_tag. Each has 32 bytes in every suite here, and a length byte.
const tagBytes = 2 * (1 + 32)

// bitFlips is how many single bits of an object are changed, one at a time.
const bitFlips = 24

// MaliciousCommit makes a member submit wrong commits: of another time, group or member, damaged,
// or beyond its rights. All are refused by name, and the group goes on.
func MaliciousCommit(ctx context.Context, w *testbed.World) {
	m := newMisbehavior(ctx, w, mlsclient.Go())
	for _, try := range []func(context.Context){
		m.wrongTime, m.wrongGroup, m.wrongSender, m.stolen, m.damaged, m.overreach, m.wrongMethod, m.byRemoved,
	} {
		try(ctx)
		m.checkUnharmed(ctx)
	}
}

// wrongTime sends an old commit, the old commit with the present epoch written into it, and a
// commit of a future epoch.
func (m *misbehavior) wrongTime(ctx context.Context) {
	group := m.group()
	staged := Must(group.StageUpdate())
	old := *staged
	Check(m.bob.Rotate(ctx, m.convo))
	Check(m.mallory.Sync(ctx, m.convo))
	m.submitted(ctx, "a commit of the last epoch", &old, mlsapi.ErrEpochMismatch)
	now, next := group.Epoch(), group.Epoch()+1
	redated := Must(mlsclient.ForgeCommit(group, old.Commit, mlsclient.Forgery{Epoch: &now}))
	m.submitted(ctx, "a commit of the last epoch with another epoch in its header", &mlsclient.Staged{Commit: redated},
		mlsapi.ErrInvalidCommit)
	staged = Must(group.StageUpdate())
	ahead := Must(mlsclient.ForgeCommit(group, staged.Commit, mlsclient.Forgery{Epoch: &next, Signed: true}))
	m.submitted(ctx, "a commit of the next epoch", &mlsclient.Staged{Commit: ahead}, mlsapi.ErrEpochMismatch)
}

// wrongGroup sends a commit of another group of mallory's, and objects that are not commits.
func (m *misbehavior) wrongGroup(ctx context.Context) {
	other := Must(m.mallory.Create(ctx))
	elsewhere := Must(m.mallory.Group(other))
	staged := Must(elsewhere.StageUpdate())
	m.submitted(ctx, "a commit of another group", staged, mlsapi.ErrInvalidCommit)
	elsewhere.Discard()
	group := m.group()
	message := Must(group.Encrypt([]byte("not a commit")))
	m.submitted(ctx, "an application message as a commit", &mlsclient.Staged{Commit: message}, mlsapi.ErrInvalidCommit)
	info := Must(group.GroupInfo())
	m.submitted(ctx, "a GroupInfo as a commit", &mlsclient.Staged{Commit: info}, mlsapi.ErrInvalidCommit)
	staged = Must(group.StageUpdate())
	m.refused(ctx, "a commit as an application message", m.mallory,
		xrpc.SendCall(m.convo, m.mallory.Account.DID, group.Epoch(), staged.Commit, xrpc.NewKey()), mlsapi.ErrInvalidMessage)
}

// wrongSender sends mallory's commits as others: with bob's leaf, with a leaf that does not exist,
// and with bob's credential on its own leaf.
func (m *misbehavior) wrongSender(ctx context.Context) {
	group := m.group()
	staged := Must(group.StageUpdate())
	bobs := Must(m.bob.Group(m.convo))
	for what, leaf := range map[string]uint32{"another's leaf": bobs.Own(), "a leaf beyond the tree": 77} {
		forged := Must(mlsclient.ForgeCommit(group, staged.Commit, mlsclient.Forgery{Sender: &leaf, Signed: true}))
		m.submitted(ctx, "a commit in the name of "+what, &mlsclient.Staged{Commit: forged}, mlsapi.ErrInvalidCommit)
	}
	staged = Must(mlsclient.StageAs(group, m.bob.Account.DID.String()))
	m.submitted(ctx, "a commit that puts another's name on the committer's leaf", staged, mlsapi.ErrInvalidCommit)
}

// stolen sends bob's commit under mallory's account. Bob's own commit is still accepted.
func (m *misbehavior) stolen(ctx context.Context) {
	Check(m.bob.Sync(ctx, m.convo))
	d := Must(m.bob.DraftCommit(m.convo, mlsclient.Change{}))
	in := Must(mlsapi.DecodeSubmitCommitInput(d.Call.Body))
	m.submitted(ctx, "another's commit", &mlsclient.Staged{Commit: in.Commit}, mlsapi.ErrInvalidCommit)
	m.submitted(ctx, "another's commit and GroupInfo", &mlsclient.Staged{Commit: in.Commit, GroupInfo: in.GroupInfo},
		mlsapi.ErrInvalidCommit)
	if _, err := m.bob.Deliver(ctx, d); err != nil {
		m.w.Broken("a commit that another has tried to submit: %v", err)
	}
	Check(m.w.SyncAll(ctx, m.convo, m.bob, m.mallory))
}

// damaged changes one bit of the signed content or of the signature.
func (m *misbehavior) damaged(ctx context.Context) {
	group := m.group()
	staged := Must(group.StageUpdate())
	for range bitFlips {
		m.submitted(ctx, "a commit with one bit flipped", &mlsclient.Staged{Commit: m.flipped(staged.Commit, tagBytes)},
			mlsapi.ErrInvalidCommit, mlsapi.ErrEpochMismatch)
	}
	m.submitted(ctx, "a commit that is cut short", &mlsclient.Staged{Commit: staged.Commit[:len(staged.Commit)-1]},
		mlsapi.ErrInvalidCommit)
	m.submitted(ctx, "a commit with more behind it", &mlsclient.Staged{Commit: append(slices.Clone(staged.Commit), 0)},
		mlsapi.ErrInvalidCommit)
}

// overreach sends valid commits that mallory has no right to. The creator may remove carol, but not
// in place of bob's removal.
func (m *misbehavior) overreach(ctx context.Context) {
	group := m.group()
	bob, carol := m.bob.Account.DID, m.carol.Account.DID
	staged := Must(group.StageRemove(bob.String()))
	m.submitted(ctx, "the removal of another member", staged, mlsapi.ErrNotPermitted)
	m.refused(ctx, "the removal of another member with leaveConvo", m.mallory,
		xrpc.RemoveCall(m.convo, bob, staged, xrpc.NewKey()), mlsapi.ErrNotPermitted)
	m.mallory.Device.HideHandshakes(true)
	staged = Must(group.StageRemove(bob.String()))
	m.submitted(ctx, "the hidden removal of another member, with the GroupInfo that shows it", staged,
		mlsapi.ErrNotPermitted)
	m.mallory.Device.HideHandshakes(false)
	other := m.ownedBy(m.bob.Account.DID)
	kp := Must(other.KeyPackage())
	staged = Must(group.StageAdd(kp.Message))
	m.submitted(ctx, "a device that is said to be another member's", staged, mlsapi.ErrInvalidCommit,
		mlsapi.ErrNotPermitted)
	Check(m.alice.Sync(ctx, m.convo))
	creators := Must(m.alice.Group(m.convo))
	staged = Must(creators.StageRemove(carol.String()))
	m.refused(ctx, "the removal of another than the one that is named", m.alice,
		xrpc.RemoveCall(m.convo, bob, staged, xrpc.NewKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	creators.Discard()
}

// wrongMethod sends a member's commit as an external commit, and an external commit as a member's.
// It also sends external commits that take another member's leaf or name.
func (m *misbehavior) wrongMethod(ctx context.Context) {
	group := m.group()
	staged := Must(group.StageUpdate())
	m.refused(ctx, "a member's commit as an external one", m.mallory, xrpc.ExternalCall(m.convo, staged, xrpc.NewKey()),
		mlsapi.ErrInvalidCommit)
	info := Must(group.GroupInfo())
	bobs := Must(m.bob.Group(m.convo))
	second := m.ownedBy(m.mallory.Account.DID)
	staged = Must(second.JoinExternal(info, mlsclient.NoLeaf))
	m.submitted(ctx, "an external commit as a member's", staged, mlsapi.ErrInvalidCommit)
	for range bitFlips / 4 {
		damaged := mlsclient.Staged{Commit: m.flipped(staged.Commit, 1+32)}
		m.refused(ctx, "an external commit with one bit flipped", m.mallory,
			xrpc.ExternalCall(m.convo, &damaged, xrpc.NewKey()),
			mlsapi.ErrInvalidCommit, mlsapi.ErrEpochMismatch)
	}
	staged = Must(second.JoinExternal(info, int(bobs.Own())))
	m.refused(ctx, "an external commit in the place of another's leaf", m.mallory,
		xrpc.ExternalCall(m.convo, staged, xrpc.NewKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
	mask := m.ownedBy(m.bob.Account.DID)
	staged = Must(mask.JoinExternal(info, mlsclient.NoLeaf))
	m.refused(ctx, "an external commit in another's name", m.mallory, xrpc.ExternalCall(m.convo, staged, xrpc.NewKey()),
		mlsapi.ErrInvalidCommit, mlsapi.ErrNotPermitted)
}

// byRemoved makes carol commit after her removal.
func (m *misbehavior) byRemoved(ctx context.Context) {
	Check(m.carol.Sync(ctx, m.convo))
	group := Must(m.carol.Group(m.convo))
	staged := Must(group.StageUpdate())
	Check(m.alice.Remove(ctx, m.convo, m.carol.Account.DID))
	m.refused(ctx, "a removed member's commit", m.carol, xrpc.SubmitCall(m.convo, staged, xrpc.NewKey()),
		mlsapi.ErrNotMember)
	now := group.Epoch() + 1
	redated := Must(mlsclient.ForgeCommit(group, staged.Commit, mlsclient.Forgery{Epoch: &now, Signed: true}))
	m.refused(ctx, "a removed member's commit in the present epoch", m.carol,
		xrpc.SubmitCall(m.convo, &mlsclient.Staged{Commit: redated}, xrpc.NewKey()),
		mlsapi.ErrNotMember)
	group.Discard()
}

// misbehavior is a convo with a member that breaks the rules. alice is the creator, bob and carol
// are honest, and mallory is not. All commit in PublicMessages, which the server can check.
type misbehavior struct {
	w                          *testbed.World
	convo                      string
	alice, bob, carol, mallory *client.Phone
	messages                   int
}

// newMisbehavior makes the convo. The honest members use the given library.
func newMisbehavior(ctx context.Context, w *testbed.World, honest mlsclient.Library) *misbehavior {
	m := &misbehavior{w: w}
	m.alice, m.bob, m.carol = m.phone(ctx, "alice", honest), m.phone(ctx, "bob", honest), m.phone(ctx, "carol", honest)
	m.mallory = m.phone(ctx, "mallory", mlsclient.Go())
	others := []*client.Phone{m.bob, m.carol, m.mallory}
	m.convo = Must(m.alice.Create(ctx, testbed.DIDs(others)...))
	for _, p := range others {
		Check(p.Join(ctx, m.convo))
	}
	return m
}

// phone makes a phone with a published KeyPackage.
func (m *misbehavior) phone(ctx context.Context, name string, library mlsclient.Library) *client.Phone {
	p := Must(m.w.PhoneOf(name, library))
	p.Device.HideHandshakes(false)
	Check(p.Publish(ctx, 1))
	return p
}

// group returns mallory's group, with nothing staged.
func (m *misbehavior) group() mlsclient.Group {
	group, err := m.mallory.Group(m.convo)
	if err == nil {
		group.Discard()
	}
	Check(err)
	return group
}

// refused makes a call that must be refused with one of the given names.
func (m *misbehavior) refused(ctx context.Context, what string, who *client.Phone, call xrpc.Call, want ...string) {
	got := m.w.Refusal(ctx, who.Account, call)
	if !slices.Contains(want, got.Name) {
		m.w.Broken("%s: %v, want %v", what, got, want)
	}
}

// submitted makes mallory submit a commit that must be refused.
func (m *misbehavior) submitted(ctx context.Context, what string, staged *mlsclient.Staged, want ...string) {
	m.refused(ctx, what, m.mallory, xrpc.SubmitCall(m.convo, staged, xrpc.NewKey()), want...)
}

// checkUnharmed checks that the attempt did not change the group: every member, mallory included,
// can still write, commit and read.
func (m *misbehavior) checkUnharmed(ctx context.Context) {
	m.group()
	m.messages++
	members := []*client.Phone{m.alice, m.bob, m.carol, m.mallory}
	members = slices.DeleteFunc(members, func(p *client.Phone) bool { return !m.w.Model.Live(m.convo, p.Account.DID) })
	Check(m.alice.Send(ctx, m.convo, fmt.Sprintf("unharmed, %d", m.messages)))
	Check(members[m.messages%len(members)].Rotate(ctx, m.convo))
	Check(m.w.SyncAll(ctx, m.convo, members...))
}

// flipped returns an object with one bit changed. The last keep bytes stay unchanged.
func (m *misbehavior) flipped(object []byte, keep int) []byte {
	broken := slices.Clone(object)
	bit := m.w.RNG.IntN(8 * (len(broken) - keep))
	broken[bit/8] ^= 1 << (bit % 8)
	return broken
}

// ownedBy makes a device that claims to belong to another account.
func (m *misbehavior) ownedBy(did syntax.DID) mlsclient.Device {
	return Must(mlsclient.NewDevice(did.String(), m.w.Suite))
}
