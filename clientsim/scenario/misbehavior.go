package scenario

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

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
// can write, commit and read.
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
