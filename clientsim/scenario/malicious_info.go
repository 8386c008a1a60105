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

// MaliciousGroupInfo makes a member send valid commits with wrong GroupInfos. A device that joined
// with a wrong GroupInfo would be in no group or in another group. The server refuses each by name,
// and the group goes on.
func MaliciousGroupInfo(ctx context.Context, w *testbed.World) {
	m := newMisbehavior(ctx, w)
	for _, try := range []func(context.Context){m.forgedInfos, m.damagedInfos, m.foundingInfos, m.joiningInfos} {
		try(ctx)
		m.checkUnharmed(ctx)
	}
}

// informed makes mallory submit a commit with this GroupInfo.
func (m *misbehavior) informed(ctx context.Context, what string, commit, info []byte) {
	m.submitted(ctx, what, &mlsclient.Staged{Commit: commit, GroupInfo: info}, mlsapi.ErrInvalidGroupInfo)
}

// forgedInfos sends real GroupInfos of another epoch, another commit and another group. It also
// sends a GroupInfo without a tree, and a GroupInfo with another signer.
func (m *misbehavior) forgedInfos(ctx context.Context) {
	group := m.group()
	present := Must(group.GroupInfo())
	other := Must(m.mallory.Create(ctx))
	elsewhere := Must(m.mallory.Group(other))
	foreign := Must(elsewhere.StageUpdate())
	elsewhere.Discard()
	lost := Must(group.StageUpdate())
	staged := Must(group.StageUpdate())
	m.informed(ctx, "a GroupInfo of the epoch before", staged.Commit, present)
	m.informed(ctx, "a GroupInfo of another group", staged.Commit, foreign.GroupInfo)
	m.informed(ctx, "a GroupInfo of another commit", staged.Commit, lost.GroupInfo)
	m.informed(ctx, "a commit as a GroupInfo", staged.Commit, staged.Commit)
	bobs := Must(m.bob.Group(m.convo))
	leaf, noLeaf := bobs.Own(), uint32(77)
	for what, forged := range map[string]mlsclient.InfoForgery{
		"a GroupInfo without ratchet_tree":   {NoTree: true},
		"a GroupInfo in another's name":      {Signer: &leaf},
		"a GroupInfo in the name of no leaf": {Signer: &noLeaf},
	} {
		info := Must(mlsclient.ForgeInfo(group, forged))
		m.informed(ctx, what, staged.Commit, info)
	}
}

// damagedInfos changes one bit at a time. The signature covers all other bits.
func (m *misbehavior) damagedInfos(ctx context.Context) {
	group := m.group()
	for _, hidden := range []bool{false, true} {
		m.mallory.Device.HideHandshakes(hidden)
		staged := Must(group.StageUpdate())
		for range bitFlips {
			m.informed(ctx, "a GroupInfo with one bit flipped", staged.Commit, m.flipped(staged.GroupInfo, 0))
		}
		m.informed(ctx, "a GroupInfo that is cut short", staged.Commit, staged.GroupInfo[:len(staged.GroupInfo)-1])
	}
	m.mallory.Device.HideHandshakes(false)
}

// foundingInfos makes mallory create convos with GroupInfos of others, and of groups with other
// members.
func (m *misbehavior) foundingInfos(ctx context.Context) {
	shared := m.group()
	stolen := Must(m.bob.GroupInfo(ctx, m.convo))
	fresh := Must(m.mallory.Device.Create([]byte("a group of mallory's own")))
	defer m.mallory.Device.Forget(fresh.ID())
	genuine := Must(fresh.GroupInfo())
	kp := Must(m.bob.Device.KeyPackage())
	withBob := Must(fresh.StageAdd(kp.Message))
	for _, f := range []struct {
		what    string
		group   []byte
		founded mlsclient.Staged
	}{
		{"a convo with the GroupInfo of another group", fresh.ID(), mlsclient.Staged{GroupInfo: stolen}},
		{"a convo with a GroupInfo that says another epoch", fresh.ID(), mlsclient.Staged{GroupInfo: genuine, Epoch: 5}},
		{"a convo with a GroupInfo with one bit flipped", fresh.ID(), mlsclient.Staged{GroupInfo: m.flipped(genuine, 0)}},
		{"a convo whose GroupInfo has people in it that are not on the roster", fresh.ID(),
			mlsclient.Staged{GroupInfo: withBob.GroupInfo, Epoch: 1}},
		{"a convo of a group that exists, with another's GroupInfo", shared.ID(),
			mlsclient.Staged{GroupInfo: stolen, Epoch: shared.Epoch()}},
	} {
		m.refused(ctx, f.what, m.mallory, xrpc.CreateCall(f.group, m.w.Suite, nil, &f.founded, xrpc.NewKey()),
			mlsapi.ErrInvalidGroupInfo, mlsapi.ErrGroupAlreadyExists)
	}
}

// joiningInfos makes a device join by external commit with a GroupInfo of another epoch.
func (m *misbehavior) joiningInfos(ctx context.Context) {
	group := m.group()
	info := Must(group.GroupInfo())
	second := m.ownedBy(m.mallory.Account.DID)
	staged := Must(second.JoinExternal(info, mlsclient.NoLeaf))
	for what, wrong := range map[string][]byte{
		"the GroupInfo that it was made from": info, "a GroupInfo with one bit flipped": m.flipped(staged.GroupInfo, 0),
	} {
		m.refused(ctx, "an external commit with "+what, m.mallory,
			xrpc.ExternalCall(m.convo, &mlsclient.Staged{Commit: staged.Commit, GroupInfo: wrong}, xrpc.NewKey()),
			mlsapi.ErrInvalidGroupInfo)
	}
}

// misbehavior is a convo with a member that breaks the rules. alice is the creator, bob and carol
// are honest, and mallory is not. All commit in PublicMessages, which the server can check.
type misbehavior struct {
	w                          *testbed.World
	convo                      string
	alice, bob, carol, mallory *client.Phone
	messages                   int
}

func newMisbehavior(ctx context.Context, w *testbed.World) *misbehavior {
	phones := Must(w.Phones(ctx, 4))
	for _, p := range phones {
		p.Device.HideHandshakes(false)
	}
	convo := Must(phones[0].Create(ctx, testbed.DIDs(phones[1:])...))
	for _, p := range phones[1:] {
		Check(p.Join(ctx, convo))
	}
	return &misbehavior{w: w, convo: convo, alice: phones[0], bob: phones[1], carol: phones[2], mallory: phones[3]}
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
