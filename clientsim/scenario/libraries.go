package scenario

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/errs"
)

// Libraries makes groups whose members use different MLS libraries: this process's library and the
// agents' libraries. Each library creates a group with readable, with encrypted, and with mixed
// handshakes, in each cipher suite that at least two libraries have. Every group goes through the
// same steps. After each step, all members must have the same epoch authenticator and the same
// leaves.
func Libraries(ctx context.Context, w *testbed.World) {
	all := append([]mlsclient.Library{mlsclient.Go()}, startAgents(ctx, w)...)
	groups, steps := 0, 0
	for _, suite := range []mlsclient.Suite{mlsclient.SuiteX25519, mlsclient.SuiteP256, mlsclient.SuiteChaCha20,
		mlsclient.SuiteXWing} {
		able := all
		if suite == mlsclient.SuiteXWing {
			able = all[1:]
		}
		if len(able) < 2 {
			w.Note("suite %d is not played: it wants two agents", suite)
			continue
		}
		for _, mode := range []handshakes{readable, encrypted, mixed} {
			for creator := range able {
				libraries := append(slices.Clone(able[creator:]), able[:creator]...)
				w.Suite = suite
				w.Progress(fmt.Sprintf("suite %d, %s handshakes, created by %s", suite, mode, libraries[0].Name))
				g := &libraryGroup{w: w, libraries: libraries, mode: mode}
				err := Attempt(func() { g.play(ctx) })
				groups, steps = groups+1, steps+g.steps
				Check(errs.Wrap(err, "suite %d, %s handshakes, created by %s, step %d", suite, mode,
					libraries[0].Name, g.steps+1))
			}
		}
	}
	w.Note("%d libraries, %d groups, %d steps: the members agree after each", len(all), groups, steps)
	playObjects(ctx, w, all[1:])
}

// startAgents starts the agents, at least one, until the scenario ends. It returns their libraries.
func startAgents(ctx context.Context, w *testbed.World) (libraries []mlsclient.Library) {
	for _, a := range Must(mlsclient.StartAgents(ctx, w.Agents)) {
		w.AtEnd(a.Close)
		libraries = append(libraries, a.Library())
	}
	if len(libraries) == 0 {
		Fail("no agent in %s", w.Agents)
	}
	return libraries
}

// handshakes says how the members of a group frame their commits. External commits are always
// readable.
type handshakes string

const (
	readable  handshakes = "readable"
	encrypted handshakes = "encrypted"
	mixed     handshakes = "mixed"
)

// libraryGroup is one group of several libraries.
type libraryGroup struct {
	w *testbed.World
	// libraries begin with the creator's library.
	libraries []mlsclient.Library
	mode      handshakes
	convo     string
	// first and second have a phone of each library. The phones of first are in the group from the
	// beginning.
	first, second []*client.Phone
	// tablet is another device of the account of first[1]. It uses the creator's library.
	tablet  *client.Phone
	members []*client.Phone
	steps   int // steps that worked
}

// play makes the group and takes it through all steps.
func (g *libraryGroup) play(ctx context.Context) {
	for _, library := range g.libraries {
		first := g.phone(ctx, library.Name+"-first", library)
		second := g.phone(ctx, library.Name+"-second", library)
		g.first, g.second = append(g.first, first), append(g.second, second)
	}
	last := len(g.libraries) - 1
	creator, other, third := g.first[0], g.first[1], g.first[last]
	for i, step := range []func(){
		func() { g.create(ctx) },
		func() { g.everyoneSends(ctx) },
		func() { g.updates(ctx, other) },
		func() { g.adds(ctx, other, g.second[0]) },
		func() { g.updates(ctx, third) },
		func() { g.sends(ctx, g.second[0]) },
		func() { g.adds(ctx, creator, g.second[1]) },
		func() { g.updates(ctx, g.second[1]) },
		func() { g.updates(ctx, creator) },
		func() { g.rejoins(ctx, other) },
		func() { g.sends(ctx, other) },
		func() { g.adds(ctx, other, g.second[last:]...) },
		func() { g.updates(ctx, g.second[last]) },
		func() { g.tabletJoins(ctx) },
		func() { g.removes(ctx, creator, g.second[1]) },
		func() { g.everyoneSends(ctx) },
		func() { g.tabletUpdates(ctx) },
		func() { g.rejoins(ctx, creator) },
		func() { g.addsAgain(ctx, creator, g.second[1]) },
		func() { g.everyoneSends(ctx) },
	} {
		g.frame(i)
		step()
		agree(ctx, g.w, g.convo, g.members)
		g.steps++
	}
}

// phone makes a phone with a published KeyPackage.
func (g *libraryGroup) phone(ctx context.Context, name string, library mlsclient.Library) *client.Phone {
	p := Must(g.w.PhoneOf(name, library))
	Check(p.Publish(ctx, 1))
	return p
}

// frame sets how the members frame their next commits.
func (g *libraryGroup) frame(step int) {
	for i, p := range slices.Concat(g.first, g.second, g.tablets()) {
		p.Device.HideHandshakes(g.mode == encrypted || g.mode == mixed && (step+i)%2 == 0)
	}
}

func (g *libraryGroup) tablets() []*client.Phone {
	if g.tablet == nil {
		return nil
	}
	return []*client.Phone{g.tablet}
}

// agree makes members read the log of a convo, and compares what they know of the group.
func agree(ctx context.Context, w *testbed.World, convo string, members []*client.Phone) {
	Check(w.SyncAll(ctx, convo, members...))
	first := Must(members[0].Group(convo))
	for _, p := range members[1:] {
		group := Must(p.Group(convo))
		if group.Epoch() != first.Epoch() || !bytes.Equal(group.Authenticator(), first.Authenticator()) {
			Fail("%s is in epoch %d with authenticator %x, and %s in epoch %d with %x",
				p.Name, group.Epoch(), group.Authenticator(), members[0].Name, first.Epoch(), first.Authenticator())
		}
		if !slices.EqualFunc(group.Leaves(), first.Leaves(), sameLeaf) {
			Fail("%s and %s see other leaves", p.Name, members[0].Name)
		}
	}
}

func sameLeaf(a, b mlsclient.Leaf) bool {
	return a.Index == b.Index && a.Identity == b.Identity && bytes.Equal(a.SignatureKey, b.SignatureKey)
}

func (g *libraryGroup) create(ctx context.Context) {
	g.convo = Must(g.first[0].Create(ctx, testbed.DIDs(g.first[1:])...))
	g.members = slices.Clone(g.first)
	g.join(ctx, g.first[1:]...)
}

// join makes phones fetch and confirm their Welcomes.
func (g *libraryGroup) join(ctx context.Context, phones ...*client.Phone) {
	for _, p := range phones {
		Check(p.Join(ctx, g.convo))
	}
}

func (g *libraryGroup) everyoneSends(ctx context.Context) {
	for _, p := range g.members {
		g.sends(ctx, p)
	}
}

func (g *libraryGroup) sends(ctx context.Context, p *client.Phone) {
	group := Must(p.Group(g.convo))
	Check(p.Send(ctx, g.convo, fmt.Sprintf("%s in epoch %d of %s", p.Name, group.Epoch(), g.convo)))
}

func (g *libraryGroup) updates(ctx context.Context, p *client.Phone) {
	Check(p.Rotate(ctx, g.convo))
}

func (g *libraryGroup) adds(ctx context.Context, by *client.Phone, phones ...*client.Phone) {
	added := slices.DeleteFunc(slices.Clone(phones), func(p *client.Phone) bool { return slices.Contains(g.members, p) })
	if len(added) == 0 { // with two libraries, the last library's phone is in the group already
		Check(by.Rotate(ctx, g.convo))
		return
	}
	Check(by.Add(ctx, g.convo, testbed.DIDs(added)...))
	g.members = append(g.members, added...)
	g.join(ctx, added...)
}

func (g *libraryGroup) removes(ctx context.Context, by, gone *client.Phone) {
	g.members = slices.DeleteFunc(g.members, func(p *client.Phone) bool { return p == gone })
	Check(by.Remove(ctx, g.convo, gone.Account.DID))
}

// addsAgain adds a phone that was removed. The phone needs another KeyPackage.
func (g *libraryGroup) addsAgain(ctx context.Context, by, added *client.Phone) {
	Check(added.Publish(ctx, 1))
	g.adds(ctx, by, added)
}

// rejoins makes a phone lose all but its signature key, and rejoin by external commit.
func (g *libraryGroup) rejoins(ctx context.Context, p *client.Phone) {
	Check(p.LoseState(true))
	Check(p.Rejoin(ctx, g.convo))
}

// tabletJoins makes a new device of a member join by external commit. The device uses another
// library than the member's phone.
func (g *libraryGroup) tabletJoins(ctx context.Context) {
	owner := g.first[1]
	g.tablet = Must(g.w.SecondDeviceOf(owner, owner.Name+"-tablet", g.libraries[0]))
	g.members = append(g.members, g.tablet)
	Check(g.tablet.Rejoin(ctx, g.convo))
}

func (g *libraryGroup) tabletUpdates(ctx context.Context) { Check(g.tablet.Rotate(ctx, g.convo)) }
