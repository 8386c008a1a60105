package scenario

import (
	"context"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// additions are accounts outside the convo and their KeyPackages. mallory uses them for bad
// additions.
type additions struct {
	*misbehavior
	dave, eve, frank              *client.Phone
	daves, daves2, eves, borrowed []byte // borrowed is frank's, claimed by bob
}

// MaliciousAdd makes a member add accounts that it does not name, with KeyPackages that it may not
// use, or with a wrong Welcome. Each attempt is refused by name and uses up no KeyPackage: in the
// end, the same KeyPackage adds dave.
func MaliciousAdd(ctx context.Context, w *testbed.World) {
	m := newMisbehavior(ctx, w)
	a := m.additions(ctx)
	for _, try := range []func(context.Context){a.wrongPeople, a.wrongPackages, a.wrongWelcomes} {
		try(ctx)
		m.checkUnharmed(ctx)
	}
	if err := m.mallory.Commit(ctx, m.convo, func() (*client.Draft, error) {
		return m.mallory.DraftAdd(m.convo, testbed.DIDs([]*client.Phone{a.dave}), [][]byte{a.daves})
	}); err != nil {
		Fail("adding with what was refused before: %w", err)
	}
	Check(a.dave.Join(ctx, m.convo))
	m.checkUnharmed(ctx)
}

func (m *misbehavior) additions(ctx context.Context) *additions {
	phones := Must(m.w.Phones(ctx, 3))
	a := &additions{misbehavior: m, dave: phones[0], eve: phones[1], frank: phones[2]}
	for _, claim := range []struct {
		by, of *client.Phone
		to     *[]byte
	}{{m.mallory, a.dave, &a.daves}, {m.mallory, a.dave, &a.daves2}, {m.mallory, a.eve, &a.eves},
		{m.bob, a.frank, &a.borrowed}} {
		packages := Must(claim.by.Claim(ctx, m.convo, testbed.DIDs([]*client.Phone{claim.of})))
		*claim.to = packages[0]
	}
	return a
}

// stage stages an addition by mallory.
func (a *additions) stage(remove []uint32, packages ...[]byte) *mlsclient.Staged {
	group := a.group()
	return Must(group.Stage(mlsclient.Change{Add: packages, Remove: remove}))
}

// added makes mallory send an addition that must be refused.
func (a *additions) added(ctx context.Context, what string, people []*client.Phone, staged *mlsclient.Staged,
	want ...string) {
	a.refused(ctx, what, a.mallory, xrpc.AddCall(a.convo, testbed.DIDs(people), staged, xrpc.NewKey()), want...)
}

// wrongPeople sends commits that do not match the list of accounts.
func (a *additions) wrongPeople(ctx context.Context) {
	staged := a.stage(nil, a.eves)
	a.added(ctx, "an addition of another than is named", []*client.Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	a.added(ctx, "an addition of one of two that are named", []*client.Phone{a.dave, a.eve}, staged,
		mlsapi.ErrInvalidCommit)
	a.submitted(ctx, "an addition with submitCommit", staged, mlsapi.ErrInvalidCommit)
	staged = a.stage(nil, a.daves, a.eves)
	a.added(ctx, "an addition of one more than is named", []*client.Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	bobs := Must(a.bob.Group(a.convo))
	staged = a.stage([]uint32{bobs.Own()}, a.daves)
	a.added(ctx, "an addition with a removal in it", []*client.Phone{a.dave}, staged, mlsapi.ErrNotPermitted)
	a.added(ctx, "an addition of one who is in already", []*client.Phone{a.bob}, staged, mlsapi.ErrAlreadyMember)
	staged = a.stage(nil)
	staged.Welcome = []byte{0, 1, 0, 3}
	a.added(ctx, "an addition of nobody", []*client.Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
	a.added(ctx, "an addition without a commit", []*client.Phone{a.dave}, &mlsclient.Staged{}, mlsapi.ErrCommitRequired)
}

// wrongPackages uses KeyPackages that mallory may not use, or that are not the account's.
func (a *additions) wrongPackages(ctx context.Context) {
	staged := a.stage(nil, a.borrowed)
	a.added(ctx, "an addition with a KeyPackage that another has claimed", []*client.Phone{a.frank}, staged,
		mlsapi.ErrInvalidWelcome)
	mask := a.ownedBy(a.dave.Account.DID)
	kp := Must(mask.KeyPackage())
	staged = a.stage(nil, kp.Message)
	a.added(ctx, "an addition of a device that only bears the person's name", []*client.Phone{a.dave}, staged,
		mlsapi.ErrKeyPackageNotFound)
	kp = Must(mlsclient.BreakLeaf(mask))
	staged = a.stage(nil, kp.Message)
	a.added(ctx, "an addition of a leaf that nobody has signed", []*client.Phone{a.dave}, staged, mlsapi.ErrInvalidCommit)
}

// wrongWelcomes sends a correct commit with a Welcome that is not for the added members.
func (a *additions) wrongWelcomes(ctx context.Context) {
	staged := a.stage(nil, a.daves)
	refs := map[string][]byte{}
	for name, kp := range map[string][]byte{"dave": a.daves, "dave2": a.daves2, "eve": a.eves, "frank": a.borrowed} {
		refs[name] = Must(mlsclient.PackageRef(kp))
	}
	for _, w := range []struct {
		what string
		refs [][]byte
		want []string
	}{
		{"that names another's KeyPackage", [][]byte{refs["eve"]},
			[]string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names one KeyPackage too many", [][]byte{refs["dave"], refs["eve"]},
			[]string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names another KeyPackage of the same device", [][]byte{refs["dave2"]}, []string{mlsapi.ErrInvalidWelcome}},
		{"that names two KeyPackages of one device", [][]byte{refs["dave"], refs["dave2"]},
			[]string{mlsapi.ErrInvalidWelcome}},
		{"that names a KeyPackage twice", [][]byte{refs["dave"], refs["dave"]}, []string{mlsapi.ErrInvalidWelcome}},
		{"that names a KeyPackage that another has claimed", [][]byte{refs["frank"]},
			[]string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
		{"that names what does not exist", [][]byte{make([]byte, 32)},
			[]string{mlsapi.ErrInvalidWelcome, mlsapi.ErrKeyPackageNotFound}},
	} {
		forged := Must(mlsclient.ForgeWelcome(staged.Welcome, w.refs...))
		a.welcomed(ctx, "a Welcome "+w.what, staged, forged, w.want...)
	}
	a.welcomed(ctx, "no Welcome", staged, nil, mlsapi.ErrInvalidWelcome)
	a.welcomed(ctx, "a Welcome that is cut short", staged, staged.Welcome[:len(staged.Welcome)-1],
		mlsapi.ErrInvalidWelcome)
	a.welcomed(ctx, "a GroupInfo as a Welcome", staged, staged.GroupInfo, mlsapi.ErrInvalidWelcome)
}

// welcomed makes mallory add dave with this Welcome.
func (a *additions) welcomed(ctx context.Context, what string, staged *mlsclient.Staged, welcome []byte,
	want ...string) {
	a.added(ctx, what, []*client.Phone{a.dave},
		&mlsclient.Staged{Commit: staged.Commit, Welcome: welcome, GroupInfo: staged.GroupInfo}, want...)
}

// MaliciousKeyPackage publishes KeyPackages that must never be handed out: another account's, one
// in another name, damaged ones, and one with a used init_key. The server refuses all of them.
// Later claims get a good KeyPackage.
func MaliciousKeyPackage(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 2))
	bob, mallory := phones[0], phones[1]
	used := Must(mallory.Device.KeyPackage())
	d := Must(mallory.DraftPackage(used))
	Must(mallory.Deliver(ctx, d))
	bad := badPackages(w, bob, mallory, used.Message)
	refused := func(what string, kp mlsclient.KeyPackage, suite mlsclient.Suite) {
		call := xrpc.PublishCall(kp, suite, xrpc.NewKey())
		if got := w.Refusal(ctx, mallory.Account, call); got.Name != mlsapi.ErrInvalidKeyPackage {
			w.Broken("publishKeyPackage of %s: %v, want InvalidKeyPackage", what, got)
		}
	}
	for what, kp := range bad {
		refused(what, kp, w.Suite)
	}
	kp := Must(mallory.Device.KeyPackage())
	other := mlsclient.SuiteX25519
	if w.Suite == other {
		other = mlsclient.SuiteP256
	}
	refused("a KeyPackage under the name of another suite", kp, other)
	convo := Must(bob.Create(ctx, mallory.Account.DID))
	Check(mallory.Join(ctx, convo))
	// The init_key of a consumed KeyPackage stays used.
	for what, kp := range bad {
		refused(what+", later", kp, w.Suite)
	}
	Check(mallory.Send(ctx, convo, "I am who I am"))
}

// badPackages makes KeyPackages that mallory must not publish. used is a KeyPackage that mallory
// has published before.
func badPackages(w *testbed.World, bob, mallory *client.Phone, used []byte) map[string]mlsclient.KeyPackage {
	bad := map[string]mlsclient.KeyPackage{}
	mask := Must(mlsclient.NewDevice(bob.Account.DID.String(), w.Suite))
	bad["a KeyPackage in another's name"] = Must(mask.KeyPackage())
	bad["another's KeyPackage"] = Must(bob.Device.KeyPackage())
	bad["a KeyPackage with a leaf that nobody has signed"] = Must(mlsclient.BreakLeaf(mallory.Device))
	bad["a KeyPackage with a used init_key"] = Must(mlsclient.ReplayInitKey(mallory.Device, used))
	kp := Must(mallory.Device.KeyPackage())
	m := &misbehavior{w: w}
	for i := range bitFlips {
		bad[fmt.Sprintf("a KeyPackage with one bit flipped (%d)", i)] = mlsclient.KeyPackage{Message: m.flipped(kp.Message,
			0)}
	}
	return bad
}
