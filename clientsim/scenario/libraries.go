package scenario

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
)

// Libraries holds groups whose members use different MLS libraries: this process's and those of the
// agents. Each library creates a group with readable, with encrypted, and with mixed handshakes, in
// each cipher suite that at least two libraries have. A group goes through the same steps. After
// each, all members must have the same epoch authenticator and the same leaves.
func Libraries(ctx context.Context, w *testbed.World) error {
	agents, err := mlsclient.StartAgents(ctx, w.Agents)
	if err != nil {
		return err
	}
	for _, a := range agents {
		w.AtEnd(a.Close)
	}
	if len(agents) == 0 {
		return fmt.Errorf("no agent in %s", w.Agents)
	}
	all := []mlsclient.Library{mlsclient.Go()}
	for _, a := range agents {
		all = append(all, a.Library())
	}
	groups, steps := 0, 0
	for _, suite := range []mlsclient.Suite{mlsclient.SuiteX25519, mlsclient.SuiteP256, mlsclient.SuiteChaCha20} {
		for _, mode := range []handshakes{readable, encrypted, mixed} {
			for creator := range all {
				libraries := append(slices.Clone(all[creator:]), all[:creator]...)
				w.Suite = suite
				w.Progress(fmt.Sprintf("suite %d, %s handshakes, created by %s", suite, mode, libraries[0].Name))
				g := &libraryGroup{w: w, libraries: libraries, mode: mode}
				done, err := g.play(ctx)
				groups, steps = groups+1, steps+done
				if err != nil {
					return fmt.Errorf("suite %d, %s handshakes, created by %s, step %d: %w", suite, mode, libraries[0].Name, done+1, err)
				}
			}
		}
	}
	w.Note("%d libraries, %d groups, %d steps: the members agree after each", len(all), groups, steps)
	return playObjects(ctx, w, all[1:])
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
	// libraries begin with the creator's.
	libraries []mlsclient.Library
	mode      handshakes
	convo     string
	// first and second have a phone of each library. The first are in the group from the beginning.
	first, second []*client.Phone
	// tablet is another device of the account of first[1]. It uses the creator's library.
	tablet  *client.Phone
	members []*client.Phone
}

// play makes the group and takes it through all steps. It returns how many worked.
func (g *libraryGroup) play(ctx context.Context) (int, error) {
	for _, library := range g.libraries {
		first, err := g.phone(ctx, library.Name+"-first", library)
		if err != nil {
			return 0, err
		}
		second, err := g.phone(ctx, library.Name+"-second", library)
		if err != nil {
			return 0, err
		}
		g.first, g.second = append(g.first, first), append(g.second, second)
	}
	last := len(g.libraries) - 1
	creator, other, third := g.first[0], g.first[1], g.first[last]
	for i, step := range []func(context.Context) error{
		g.create,
		g.everyoneSends,
		g.updates(other),
		g.adds(other, g.second[0]),
		g.updates(third),
		g.sends(g.second[0]),
		g.adds(creator, g.second[1]),
		g.updates(g.second[1]),
		g.updates(creator),
		g.rejoins(other),
		g.sends(other),
		g.adds(other, g.second[last:]...),
		g.updates(g.second[last]),
		g.tabletJoins,
		g.removes(creator, g.second[1]),
		g.everyoneSends,
		g.tabletUpdates,
		g.rejoins(creator),
		g.addsAgain(creator, g.second[1]),
		g.everyoneSends,
	} {
		g.frame(i)
		if err := step(ctx); err != nil {
			return i, err
		}
		if err := g.agree(ctx); err != nil {
			return i, err
		}
	}
	return groupSteps, nil
}

// phone makes a phone with a published KeyPackage.
func (g *libraryGroup) phone(ctx context.Context, name string, library mlsclient.Library) (*client.Phone, error) {
	p, err := g.w.PhoneOf(name, library)
	if err != nil {
		return nil, err
	}
	return p, p.Publish(ctx, 1)
}

// groupSteps is how many steps a group goes through.
const groupSteps = 20

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

// agree makes every member read the log, and compares what they know of the group.
func (g *libraryGroup) agree(ctx context.Context) error {
	if err := g.w.SyncAll(ctx, g.convo, g.members...); err != nil {
		return err
	}
	first, err := g.members[0].Group(g.convo)
	if err != nil {
		return err
	}
	for _, p := range g.members[1:] {
		group, err := p.Group(g.convo)
		if err != nil {
			return err
		}
		if group.Epoch() != first.Epoch() || !bytes.Equal(group.Authenticator(), first.Authenticator()) {
			return fmt.Errorf("%s is in epoch %d with authenticator %x, and %s in epoch %d with %x",
				p.Name, group.Epoch(), group.Authenticator(), g.members[0].Name, first.Epoch(), first.Authenticator())
		}
		if !slices.EqualFunc(group.Leaves(), first.Leaves(), sameLeaf) {
			return fmt.Errorf("%s and %s see other leaves", p.Name, g.members[0].Name)
		}
	}
	return nil
}

func sameLeaf(a, b mlsclient.Leaf) bool {
	return a.Index == b.Index && a.Identity == b.Identity && bytes.Equal(a.SignatureKey, b.SignatureKey)
}

func (g *libraryGroup) create(ctx context.Context) (err error) {
	if g.convo, err = g.first[0].Create(ctx, testbed.DIDs(g.first[1:])...); err != nil {
		return err
	}
	g.members = slices.Clone(g.first)
	return g.join(ctx, g.first[1:]...)
}

// join makes phones fetch and confirm their Welcomes.
func (g *libraryGroup) join(ctx context.Context, phones ...*client.Phone) error {
	for _, p := range phones {
		if err := p.Join(ctx, g.convo); err != nil {
			return err
		}
	}
	return nil
}

func (g *libraryGroup) everyoneSends(ctx context.Context) error {
	for _, p := range g.members {
		if err := g.sends(p)(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (g *libraryGroup) sends(p *client.Phone) func(context.Context) error {
	return func(ctx context.Context) error {
		group, err := p.Group(g.convo)
		if err != nil {
			return err
		}
		return p.Send(ctx, g.convo, fmt.Sprintf("%s in epoch %d of %s", p.Name, group.Epoch(), g.convo))
	}
}

func (g *libraryGroup) updates(p *client.Phone) func(context.Context) error {
	return func(ctx context.Context) error { return p.Rotate(ctx, g.convo) }
}

func (g *libraryGroup) adds(by *client.Phone, added ...*client.Phone) func(context.Context) error {
	return func(ctx context.Context) error {
		added := slices.DeleteFunc(slices.Clone(added), func(p *client.Phone) bool { return slices.Contains(g.members, p) })
		if len(added) == 0 { // with two libraries, the last one's phone is in the group already
			return by.Rotate(ctx, g.convo)
		}
		if err := by.Add(ctx, g.convo, testbed.DIDs(added)...); err != nil {
			return err
		}
		g.members = append(g.members, added...)
		return g.join(ctx, added...)
	}
}

func (g *libraryGroup) removes(by, gone *client.Phone) func(context.Context) error {
	return func(ctx context.Context) error {
		g.members = slices.DeleteFunc(g.members, func(p *client.Phone) bool { return p == gone })
		return by.Remove(ctx, g.convo, gone.Account.DID)
	}
}

// addsAgain adds a phone that was removed. It needs another KeyPackage.
func (g *libraryGroup) addsAgain(by, added *client.Phone) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := added.Publish(ctx, 1); err != nil {
			return err
		}
		return g.adds(by, added)(ctx)
	}
}

// rejoins makes a phone lose all but its signature key, and rejoin by external commit.
func (g *libraryGroup) rejoins(p *client.Phone) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.LoseState(true); err != nil {
			return err
		}
		return p.Rejoin(ctx, g.convo)
	}
}

// tabletJoins makes a new device of a member join by external commit. It uses another library than
// the member's phone.
func (g *libraryGroup) tabletJoins(ctx context.Context) (err error) {
	owner := g.first[1]
	if g.tablet, err = g.w.SecondDeviceOf(owner, owner.Name+"-tablet", g.libraries[0]); err != nil {
		return err
	}
	g.members = append(g.members, g.tablet)
	return g.tablet.Rejoin(ctx, g.convo)
}

func (g *libraryGroup) tabletUpdates(ctx context.Context) error { return g.tablet.Rotate(ctx, g.convo) }
