package clientsim

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// mischief is a convo with a member that breaks the rules: alice has made it,
// bob and carol are honest, and mallory is what its name says. All commit in
// PublicMessages, which the server can judge.
type mischief struct {
	w                          *World
	convo                      string
	alice, bob, carol, mallory *Phone
	talk                       int
}

func (w *World) mischief(ctx context.Context) (*mischief, error) {
	phones, err := w.Phones(ctx, 4)
	if err != nil {
		return nil, err
	}
	for _, p := range phones {
		p.device.HideHandshakes(false)
	}
	convo, err := phones[0].Create(ctx, dids(phones[1:])...)
	if err != nil {
		return nil, err
	}
	for _, p := range phones[1:] {
		if err := p.Join(ctx, convo); err != nil {
			return nil, err
		}
	}
	return &mischief{w: w, convo: convo, alice: phones[0], bob: phones[1], carol: phones[2], mallory: phones[3]}, nil
}

// group is mallory's, with nothing staged.
func (m *mischief) group() (Group, error) {
	group, err := m.mallory.Group(m.convo)
	if err == nil {
		group.Discard()
	}
	return group, err
}

// refused makes a call that has to be refused with one of the given names.
func (m *mischief) refused(ctx context.Context, what string, who *Phone, call Call, want ...string) {
	got := m.w.refusal(ctx, who.Account, call)
	if !slices.Contains(want, got.Name) {
		m.w.Broken("%s: %v, want %v", what, got, want)
	}
}

// submitted has mallory submit a commit that has to be refused.
func (m *mischief) submitted(ctx context.Context, what string, staged *Staged, want ...string) {
	m.refused(ctx, what, m.mallory, submitCall(m.convo, staged, newKey()), want...)
}

// goOn shows that whatever was tried has left the group as it was: everybody
// can write, commit and read, mallory too.
func (m *mischief) goOn(ctx context.Context) error {
	if _, err := m.group(); err != nil {
		return err
	}
	m.talk++
	members := []*Phone{m.alice, m.bob, m.carol, m.mallory}
	members = slices.DeleteFunc(members, func(p *Phone) bool { return !m.w.model.live(m.convo, p.Account.DID) })
	if err := m.alice.Send(ctx, m.convo, fmt.Sprintf("unharmed, %d", m.talk)); err != nil {
		return err
	}
	if err := members[m.talk%len(members)].Rotate(ctx, m.convo); err != nil {
		return err
	}
	return m.w.SyncAll(ctx, m.convo, members...)
}

// flipped is an object with one bit of its first part changed; keep is how many
// bytes at its end stay as they are.
func (m *mischief) flipped(object []byte, keep int) []byte {
	broken := slices.Clone(object)
	bit := m.w.rng.IntN(8 * (len(broken) - keep))
	broken[bit/8] ^= 1 << (bit % 8)
	return broken
}

// ownedBy makes a device that says it is another account's.
func (m *mischief) ownedBy(did syntax.DID) (Device, error) { return NewDevice(did.String(), m.w.suite) }
