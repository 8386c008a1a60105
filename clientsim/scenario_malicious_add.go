package clientsim

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
)

// additions are people outside, and KeyPackages of theirs: what mallory has to
// add somebody with.
type additions struct {
	*mischief
	dave, eve, frank              *Phone
	daves, daves2, eves, borrowed []byte // borrowed is frank's, claimed by bob
}

// MaliciousAdd has a member add whom it does not name, with KeyPackages that it
// has not, or with a Welcome that leads elsewhere. All are refused by name, and
// what was tried in vain is used up by nothing: the same KeyPackage adds dave in
// the end.
func MaliciousAdd(ctx context.Context, w *World) error {
	m, err := w.mischief(ctx)
	if err != nil {
		return err
	}
	a, err := m.additions(ctx)
	if err != nil {
		return err
	}
	for _, try := range []func(context.Context) error{a.wrongPeople, a.wrongPackages, a.wrongWelcomes} {
		if err := try(ctx); err != nil {
			return err
		}
		if err := m.goOn(ctx); err != nil {
			return err
		}
	}
	if err := m.mallory.commit(ctx, m.convo, func() (*Draft, error) {
		return m.mallory.DraftAdd(m.convo, dids([]*Phone{a.dave}), [][]byte{a.daves})
	}); err != nil {
		return fmt.Errorf("adding at last with what was tried in vain: %w", err)
	}
	if err := a.dave.Join(ctx, m.convo); err != nil {
		return err
	}
	return m.goOn(ctx)
}

func (m *mischief) additions(ctx context.Context) (*additions, error) {
	phones, err := m.w.Phones(ctx, 3)
	if err != nil {
		return nil, err
	}
	a := &additions{mischief: m, dave: phones[0], eve: phones[1], frank: phones[2]}
	for _, claim := range []struct {
		by, of *Phone
		to     *[]byte
	}{{m.mallory, a.dave, &a.daves}, {m.mallory, a.dave, &a.daves2}, {m.mallory, a.eve, &a.eves}, {m.bob, a.frank, &a.borrowed}} {
		packages, err := claim.by.Claim(ctx, m.convo, dids([]*Phone{claim.of}))
		if err != nil {
			return nil, err
		}
		*claim.to = packages[0]
	}
	return a, nil
}

// stage stages an addition of mallory's.
func (a *additions) stage(remove []uint32, packages ...[]byte) (*Staged, error) {
	group, err := a.group()
	if err != nil {
		return nil, err
	}
	return group.Stage(Change{Add: packages, Remove: remove})
}

// added has mallory add people with a commit that has to be refused.
func (a *additions) added(ctx context.Context, what string, people []*Phone, staged *Staged, want ...string) {
	a.refused(ctx, what, a.mallory, addCall(a.convo, dids(people), staged, newKey()), want...)
}

// wrongPeople: the commit and the list of people do not say the same.
func (a *additions) wrongPeople(ctx context.Context) error {
	staged, err := a.stage(nil, a.eves)
	if err != nil {
		return err
	}
	a.added(ctx, "an addition of another than is named", []*Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	a.added(ctx, "an addition of one of two that are named", []*Phone{a.dave, a.eve}, staged, mlsapi.ErrInvalidCommit)
	a.submitted(ctx, "an addition with submitCommit", staged, mlsapi.ErrInvalidCommit)
	if staged, err = a.stage(nil, a.daves, a.eves); err != nil {
		return err
	}
	a.added(ctx, "an addition of one more than is named", []*Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	bobs, err := a.bob.Group(a.convo)
	if err != nil {
		return err
	}
	if staged, err = a.stage([]uint32{bobs.Own()}, a.daves); err != nil {
		return err
	}
	a.added(ctx, "an addition with a removal in it", []*Phone{a.dave}, staged, mlsapi.ErrNotPermitted)
	a.added(ctx, "an addition of one who is in already", []*Phone{a.bob}, staged, mlsapi.ErrAlreadyMember)
	if staged, err = a.stage(nil); err != nil {
		return err
	}
	staged.Welcome = []byte{0, 1, 0, 3}
	a.added(ctx, "an addition of nobody", []*Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	a.added(ctx, "an addition without a commit", []*Phone{a.dave}, &Staged{}, mlsapi.ErrCommitRequired)
	return nil
}

// wrongPackages: the KeyPackages are not mallory's to use, or not the person's.
func (a *additions) wrongPackages(ctx context.Context) error {
	staged, err := a.stage(nil, a.borrowed)
	if err != nil {
		return err
	}
	a.added(ctx, "an addition with a KeyPackage that another has claimed", []*Phone{a.frank}, staged, mlsapi.ErrInvalidWelcome)
	mask, err := a.ownedBy(a.dave.Account.DID)
	if err != nil {
		return err
	}
	kp, err := mask.KeyPackage()
	if err != nil {
		return err
	}
	if staged, err = a.stage(nil, kp.Message); err != nil {
		return err
	}
	a.added(ctx, "an addition of a device that only bears the person's name", []*Phone{a.dave}, staged, mlsapi.ErrKeyPackageNotFound)
	if kp, err = breakLeaf(mask); err != nil {
		return err
	}
	if staged, err = a.stage(nil, kp.Message); err != nil {
		return err
	}
	a.added(ctx, "an addition of a leaf that nobody has signed", []*Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	return nil
}

// wrongWelcomes: the commit is as it should be, and the Welcome is not for those
// whom it adds.
func (a *additions) wrongWelcomes(ctx context.Context) error {
	staged, err := a.stage(nil, a.daves)
	if err != nil {
		return err
	}
	refs := map[string][]byte{}
	for name, kp := range map[string][]byte{"dave": a.daves, "dave2": a.daves2, "eve": a.eves, "frank": a.borrowed} {
		if refs[name], err = packageRef(kp); err != nil {
			return err
		}
	}
	for _, w := range []struct {
		what string
		refs [][]byte
		want []string
	}{
		{"that names another's KeyPackage", [][]byte{refs["eve"]}, []string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names one KeyPackage too many", [][]byte{refs["dave"], refs["eve"]}, []string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names another KeyPackage of the same device", [][]byte{refs["dave2"]}, []string{mlsapi.ErrInvalidWelcome}},
		{"that names two KeyPackages of one device", [][]byte{refs["dave"], refs["dave2"]}, []string{mlsapi.ErrInvalidWelcome}},
		{"that names a KeyPackage twice", [][]byte{refs["dave"], refs["dave"]}, []string{mlsapi.ErrInvalidWelcome}},
		{"that names a KeyPackage that another has claimed", [][]byte{refs["frank"]}, []string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names what does not exist", [][]byte{make([]byte, 32)}, []string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
	} {
		forged, err := forgeWelcome(staged.Welcome, w.refs...)
		if err != nil {
			return err
		}
		a.welcomed(ctx, "a Welcome "+w.what, staged, forged, w.want...)
	}
	a.welcomed(ctx, "no Welcome", staged, nil, mlsapi.ErrInvalidWelcome)
	a.welcomed(ctx, "a Welcome that is cut short", staged, staged.Welcome[:len(staged.Welcome)-1], mlsapi.ErrInvalidWelcome)
	a.welcomed(ctx, "a GroupInfo as a Welcome", staged, staged.GroupInfo, mlsapi.ErrInvalidWelcome)
	return nil
}

// welcomed has mallory add dave with this Welcome.
func (a *additions) welcomed(ctx context.Context, what string, staged *Staged, welcome []byte, want ...string) {
	a.added(ctx, what, []*Phone{a.dave}, &Staged{Commit: staged.Commit, Welcome: welcome, GroupInfo: staged.GroupInfo}, want...)
}
