package mlsclient

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/thomas-vilte/mls-go/group"

	. "mlsd/clientsim/steps"
)

// agentDevice implements Device by an agent. Its state lives as long as the agent, so it cannot be
// exported: an app with such a device cannot be killed.
type agentDevice struct {
	agent    *Agent
	name     string // within the agent
	identity string
	suite    Suite
	key      []byte
	hidden   bool                   // see HideHandshakes
	waiting  map[string]bool        // KeyPackageRefs in hex
	groups   map[string]*agentGroup // by group_id
}

// NewDevice makes a device of the agent's library.
func (a *Agent) NewDevice(identity string, suite Suite) (Device, error) {
	return a.newDevice(identity, suite, "")
}

func (a *Agent) newDevice(identity string, suite Suite, former string) (_ *agentDevice, err error) {
	defer Catch(&err)
	d := &agentDevice{
		agent: a, name: a.nextName(), identity: identity, suite: suite, waiting: map[string]bool{},
		groups: map[string]*agentGroup{},
	}
	answer := Must(d.do(agentRequest{Op: "device", Former: former, Identity: identity, Suite: suite}))
	d.key = answer.SignatureKey
	return d, nil
}

func (d *agentDevice) do(request agentRequest) (agentAnswer, error) {
	request.Device = d.name
	return d.agent.do(request)
}

func (d *agentDevice) Identity() string { return d.identity }

func (d *agentDevice) SignatureKey() []byte { return bytes.Clone(d.key) }

func (d *agentDevice) HideHandshakes(hide bool) { d.hidden = hide }

func (d *agentDevice) Reborn(keepKey bool) (_ Device, err error) {
	defer Catch(&err)
	former := ""
	if keepKey {
		former = d.name
	}
	reborn := Must(d.agent.newDevice(d.identity, d.suite, former))
	reborn.hidden = d.hidden
	return reborn, nil
}

func (d *agentDevice) KeyPackage() (_ KeyPackage, err error) {
	defer Catch(&err)
	answer := Must(d.do(agentRequest{Op: "keyPackage"}))
	ref := Must(PackageRef(answer.Output))
	kp := KeyPackage{Message: answer.Output, Ref: hex.EncodeToString(ref)}
	d.waiting[kp.Ref] = true
	return kp, nil
}

func (d *agentDevice) LastResort() (KeyPackage, error) {
	return KeyPackage{}, fmt.Errorf("agent %s makes no last-resort KeyPackages", d.agent.name)
}

func (d *agentDevice) Refs() []string { return slices.Sorted(maps.Keys(d.waiting)) }

func (d *agentDevice) Create(groupID []byte) (Group, error) {
	return d.adopt(d.do(agentRequest{Op: "create", Group: groupID}))
}

func (d *agentDevice) Join(welcome []byte) (_ Group, err error) {
	defer CatchIn(&err, "join")
	parsed := Must(group.UnmarshalWelcome(Must(unwrap(formatWelcome, welcome))))
	joined := Must(d.adopt(d.do(agentRequest{Op: "join", Input: welcome})))
	for _, secret := range parsed.Secrets {
		delete(d.waiting, hex.EncodeToString(secret.NewMember))
	}
	return joined, nil
}

// JoinExternal can only replace the leaf with the device's own signature key, because the libraries
// choose the leaf themselves.
func (d *agentDevice) JoinExternal(groupInfo []byte, prior int) (_ *Staged, err error) {
	defer Catch(&err)
	info := Must(ReadInfo(groupInfo))
	own := slices.IndexFunc(info.Leaves, func(l Leaf) bool { return bytes.Equal(l.SignatureKey, d.key) })
	replaced := NoLeaf
	if own >= 0 {
		replaced = int(info.Leaves[own].Index)
	}
	if replaced != prior {
		return nil, fmt.Errorf("agent %s: an external commit would remove leaf %d, not %d", d.agent.name, replaced, prior)
	}
	answer := Must(d.do(agentRequest{Op: "joinExternal", Input: groupInfo}))
	if answer.Staged == nil {
		return nil, fmt.Errorf("agent %s: nothing was staged", d.agent.name)
	}
	return answer.Staged.staged(), nil
}

func (d *agentDevice) ConfirmJoin(groupID []byte) (Group, error) {
	return d.adopt(d.do(agentRequest{Op: "confirmJoin", Group: groupID}))
}

// DiscardJoin cannot fail: a join that the agent does not know is forgotten already.
func (d *agentDevice) DiscardJoin(groupID []byte) {
	_, _ = d.do(agentRequest{Op: "discardJoin", Group: groupID})
}

// adopt keeps the group of an answer.
func (d *agentDevice) adopt(answer agentAnswer, err error) (Group, error) {
	if err != nil {
		return nil, err
	}
	if answer.State == nil {
		return nil, fmt.Errorf("agent %s: no state of the group", d.agent.name)
	}
	g := &agentGroup{device: d, state: answer.State}
	g.usual = usual{g}
	d.groups[string(g.state.Group)] = g
	return g, nil
}

func (d *agentDevice) Group(groupID []byte) (Group, bool) {
	g, ok := d.groups[string(groupID)]
	if !ok {
		return nil, false
	}
	return g, true
}

// Forget cannot fail, like DiscardJoin.
func (d *agentDevice) Forget(groupID []byte) {
	delete(d.groups, string(groupID))
	_, _ = d.do(agentRequest{Op: "forget", Group: groupID})
}

// Grease implements Greaser.
func (d *agentDevice) Grease() error {
	_, err := d.do(agentRequest{Op: "grease"})
	return err
}

// KeepPSK implements PSKKeeper.
func (d *agentDevice) KeepPSK(id, secret []byte) error {
	_, err := d.do(agentRequest{Op: "keepPsk", Input: id, Secret: secret})
	return err
}

// Export writes only the agent's name. ImportDevice refuses such a device.
func (d *agentDevice) Export() ([]byte, error) {
	return json.Marshal(deviceFile{Agent: d.agent.name})
}

// agentGroup implements Group by an agent.
type agentGroup struct {
	usual
	device  *agentDevice
	state   *agentState
	pending *Staged
}

func (g *agentGroup) ID() []byte            { return bytes.Clone(g.state.Group) }
func (g *agentGroup) Epoch() uint64         { return g.state.Epoch }
func (g *agentGroup) Authenticator() []byte { return bytes.Clone(g.state.Authenticator) }
func (g *agentGroup) Own() uint32           { return g.state.Own }
func (g *agentGroup) Pending() *Staged      { return g.pending }

func (g *agentGroup) Leaves() []Leaf {
	leaves := make([]Leaf, len(g.state.Leaves))
	for i, leaf := range g.state.Leaves {
		leaves[i] = Leaf{Index: leaf.Index, Identity: leaf.Identity, SignatureKey: bytes.Clone(leaf.SignatureKey)}
	}
	return leaves
}

// do sends a request about the group, and keeps the state that the answer has.
func (g *agentGroup) do(request agentRequest) (agentAnswer, error) {
	request.Group = g.state.Group
	answer, err := g.device.do(request)
	if err == nil && answer.State != nil {
		g.state = answer.State
	}
	return answer, err
}

func (g *agentGroup) GroupInfo() ([]byte, error) {
	answer, err := g.do(agentRequest{Op: "groupInfo"})
	return answer.Output, err
}

func (g *agentGroup) Encrypt(plaintext []byte) ([]byte, error) {
	answer, err := g.do(agentRequest{Op: "encrypt", Input: plaintext})
	return answer.Output, err
}

func (g *agentGroup) Process(message []byte) (_ Received, err error) {
	defer Catch(&err)
	epoch := g.Epoch()
	if g.pending != nil && bytes.Equal(message, g.pending.Commit) {
		return Received{Commit: true, Own: true, Epoch: epoch, Sender: g.device.identity}, g.Confirm()
	}
	answer := Must(g.do(agentRequest{Op: "process", Input: message}))
	got := answer.Received
	if got == nil {
		return Received{}, fmt.Errorf("agent %s: nothing was received", g.device.agent.name)
	}
	if got.Commit {
		g.pending = nil
	}
	return Received{Commit: got.Commit, Proposal: got.Proposal, Epoch: epoch, Sender: got.Sender,
		Plaintext: got.Plaintext}, nil
}

// Propose implements Proposer.
func (g *agentGroup) Propose(kind Proposal, argument []byte) ([]byte, error) {
	answer, err := g.do(agentRequest{Op: "propose", Proposal: kind, Input: argument})
	return answer.Output, err
}

func (g *agentGroup) Stage(change Change) (_ *Staged, err error) {
	defer Catch(&err)
	g.Discard()
	answer := Must(g.do(agentRequest{Op: "stage", Add: change.Add, Remove: change.Remove, Hidden: g.device.hidden}))
	if answer.Staged == nil {
		return nil, fmt.Errorf("agent %s: nothing was staged", g.device.agent.name)
	}
	g.pending = answer.Staged.staged()
	return g.pending, nil
}

func (g *agentGroup) Confirm() error {
	if g.pending == nil {
		return errors.New("confirm: no commit is staged")
	}
	g.pending = nil
	_, err := g.do(agentRequest{Op: "confirm"})
	return err
}

// Discard cannot fail: the agent forgets what it has staged.
func (g *agentGroup) Discard() {
	if g.pending != nil {
		g.pending = nil
		_, _ = g.do(agentRequest{Op: "discard"})
	}
}
