// Package client is a client of the server as it must behave: a Phone that journals every write
// before it sends it, a Subscriber that listens to events, and a Receiver of pushes.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Phone is one device of one account, and does what a client must do. It writes ciphertext and key
// to its disk before it sends them. It writes Welcome bytes before it joins with them, and a
// plaintext together with the ratchet that decrypted it. Kill ends the app at any time, and Launch
// starts it from what is on the disk. It is not safe for concurrent use.
type Phone struct {
	Name    string
	Account *xrpc.Account

	Net   *xrpc.Client
	Model *history.Model
	stats *xrpc.Stats
	Suite mlsclient.Suite
	Disk  *Disk
	// HasSiblings is set if the account has more devices. Then the phone asks for its Welcome by
	// KeyPackageRef.
	HasSiblings bool
	// FormerKey is the signature key of the device that this one replaces, or nil. A rejoin removes
	// the leaf with that key.
	FormerKey []byte
	// HidesGroupInfo makes this phone send its commits without a GroupInfo.
	HidesGroupInfo bool
	// SpoilsWelcomes makes this phone damage the Welcomes of its commits. Only the invited devices can
	// see the damage.
	SpoilsWelcomes bool
	// Verifies makes this phone check the log of its convos against the server's signed heads.
	Verifies bool

	*App
}

// App is the memory of a phone's app. It is gone when the app is killed.
type App struct {
	Device  mlsclient.Device
	Threads map[string]*Thread // by convo id
}

// Thread is what a phone knows of one convo.
type Thread struct {
	ConvoID string `json:"convoId"`
	GroupID []byte `json:"groupId"`
	// First and Cursor are the first and the last seq that were read.
	First  int64 `json:"first"`
	Cursor int64 `json:"cursor"`
	// Entered is the epoch in which this device joined the group. It has no key for older messages
	// of its account.
	Entered uint64 `json:"entered"`
	// Last is the id of the entry at Cursor. It is empty if the phone has not read that entry.
	Last string `json:"last,omitempty"`
	// Rewound is set if the server has lost entries that this device had read.
	Rewound bool `json:"rewound,omitempty"`
	// Stuck is set while the device cannot process the commit after Cursor. The group is not in the
	// convo's epoch until the device has entered the group again: see Return.
	Stuck bool `json:"stuck,omitempty"`
	// Successor is the convo that replaces this one after a reset. It is "" until the phone reads the
	// reset in the log.
	Successor string `json:"successor,omitempty"`
	// AddedBy is the commit that added this device, if the server has lost that commit.
	AddedBy history.Digest `json:"addedBy,omitzero"`
}

// ErrKilled is returned by every method of a phone whose app is not running.
var ErrKilled = errors.New("clientsim: the app is not running")

// NewPhone makes a phone with a new device of the usual library.
func NewPhone(name string, account *xrpc.Account, suite mlsclient.Suite, net *xrpc.Client,
	model *history.Model) (_ *Phone, err error) {
	defer Catch(&err)
	device := Must(mlsclient.NewDevice(account.DID.String(), suite))
	return NewPhoneWith(name, account, suite, device, net, model)
}

// NewPhoneWith makes a phone with a given new device. The phone's app runs.
func NewPhoneWith(name string, account *xrpc.Account, suite mlsclient.Suite, device mlsclient.Device, net *xrpc.Client,
	model *history.Model) (*Phone, error) {
	p := &Phone{Name: name, Account: account, Net: net, Model: model, stats: net.Stats, Suite: suite, Disk: NewDisk()}
	p.App = &App{Device: device, Threads: map[string]*Thread{}}
	return p, p.Save(nil)
}

// At returns the same device and app at another service. Both phones share one memory and one disk.
func (p *Phone) At(net *xrpc.Client, model *history.Model) *Phone {
	there := *p
	there.Net, there.Model, there.stats = net, model, net.Stats
	return &there
}

// Kill ends the app without warning, as a phone's system does.
func (p *Phone) Kill() { p.Device, p.Threads = nil, nil }

// Launch starts the app from what is on the disk. Unacknowledged drafts are still in the outbox:
// see Flush.
func (p *Phone) Launch() (err error) {
	defer Catch(&err)
	data, ok := p.Disk.Read(deviceName)
	if !ok {
		return fmt.Errorf("%s: no device on the disk", p.Name)
	}
	device, err := mlsclient.ImportDevice(data)
	Check(errs.Wrap(err, "%s", p.Name))
	threads := map[string]*Thread{}
	for _, name := range p.Disk.List(threadPrefix) {
		data, _ := p.Disk.Read(name)
		thread := &Thread{}
		Check(errs.Wrap(json.Unmarshal(data, thread), "%s: %s", p.Name, name))
		threads[thread.ConvoID] = thread
	}
	p.Device, p.Threads = device, threads
	return nil
}

// Names of files on a phone's disk.
const (
	deviceName    = "device"
	threadPrefix  = "thread/"
	inboxPrefix   = "inbox/"
	OutboxPrefix  = "outbox/"
	ownPrefix     = "own/"
	welcomePrefix = "welcome/"
	keptPrefix    = "kept/"  // acknowledged drafts: see MakeGood
	seenPrefix    = "seen/"  // entries that the verifier has not seen
	proofPrefix   = "proof/" // the verifier of a convo's log
	loosePrefix   = "loose/" // entries that the phone has read and the server has lost
	usedPrefix    = "used/"  // KeyPackageRef of the Welcome that was joined with
)

// Save writes the device and the given files in one write.
func (p *Phone) Save(changes map[string][]byte) error {
	data, err := p.Device.Export()
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	all := map[string][]byte{deviceName: data}
	for name, content := range changes {
		all[name] = content
	}
	p.Disk.Write(all)
	return nil
}

// Open returns a convo's thread and group.
func (p *Phone) Open(convo string) (*Thread, mlsclient.Group, error) {
	if p.Device == nil {
		return nil, nil, ErrKilled
	}
	thread, ok := p.Threads[convo]
	if !ok {
		return nil, nil, fmt.Errorf("%s: no thread for convo %s", p.Name, convo)
	}
	group, ok := p.Device.Group(thread.GroupID)
	if !ok {
		return nil, nil, fmt.Errorf("%s: no group for convo %s", p.Name, convo)
	}
	return thread, group, nil
}

// ask makes a call and reads its output. Its error names the phone and the method.
func ask[T any](ctx context.Context, p *Phone, call xrpc.Call) (*T, error) {
	out, err := xrpc.Ask[T](ctx, p.Net, p.Account, call)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", p.Name, call.Method.Name(), err)
	}
	return out, nil
}

// Group returns the MLS group behind a convo.
func (p *Phone) Group(convo string) (mlsclient.Group, error) {
	_, group, err := p.Open(convo)
	return group, err
}

// Publish publishes n fresh KeyPackages.
func (p *Phone) Publish(ctx context.Context, n int) (err error) {
	defer Catch(&err)
	for range n {
		draft := Must(p.DraftPublish())
		Must(p.Deliver(ctx, draft))
	}
	return nil
}

// Send sends one message until it is acknowledged. If the epoch moves first, the server has stored
// nothing under the key. Then the text is encrypted again under a new key.
func (p *Phone) Send(ctx context.Context, convo, text string) (err error) {
	defer Catch(&err)
	for range maxEpochRaces {
		draft := Must(p.DraftSend(convo, text))
		if _, err = p.Deliver(ctx, draft); xrpc.ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
		Check(p.Sync(ctx, convo))
	}
	return fmt.Errorf("%s: %q met another epoch %d times", p.Name, text, maxEpochRaces)
}

// Propose sends one proposal in clear, and returns it. The epoch must not move before the answer.
func (p *Phone) Propose(ctx context.Context, convo string, kind mlsclient.Proposal,
	argument []byte) (_ []byte, err error) {
	defer Catch(&err)
	draft, message := Must2(p.DraftProposal(convo, kind, argument))
	_, err = p.Deliver(ctx, draft)
	return message, err
}

// maxEpochRaces is how often a write may lose its epoch to another commit.
const maxEpochRaces = 50

// Flush delivers the drafts that a killed app left in its outbox.
func (p *Phone) Flush(ctx context.Context) (err error) {
	defer Catch(&err)
	for _, name := range p.Disk.List(OutboxPrefix) {
		draft := Must(p.readDraft(strings.TrimPrefix(name, OutboxPrefix)))
		_, err = p.Deliver(ctx, draft)
		switch {
		case err == nil:
		case xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch && draft.Kind == kindSend:
			Check(p.Sync(ctx, draft.Convo()))
			Check(p.Send(ctx, draft.Convo(), draft.Text))
		case SuccessorIn(err) != "" && draft.Kind == kindSend:
			Must(p.SendOn(ctx, draft.Convo(), draft.Text))
		case SuccessorIn(err) != "":
			// Another reset came first.
		case xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch:
			// The commit lost its epoch. The caller may make a new one.
		default:
			return err
		}
	}
	return nil
}

// Disk is a phone's durable storage. Only what is on it survives when the app is killed. One Write
// is atomic, like one SQLite transaction of a real app. A Disk is safe for concurrent use.
type Disk struct {
	mu    sync.Mutex // guards files
	files map[string][]byte
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{files: map[string][]byte{}} }

// Write stores the given files, and removes those whose content is nil.
func (d *Disk) Write(changes map[string][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, content := range changes {
		if content == nil {
			delete(d.files, name)
			continue
		}
		d.files[name] = bytes.Clone(content)
	}
}

// Read returns a file's content.
func (d *Disk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	content, ok := d.files[name]
	return bytes.Clone(content), ok
}

// List returns the names that start with prefix, in order.
func (d *Disk) List(prefix string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(d.files)), func(name string) bool {
		return !strings.HasPrefix(name, prefix)
	})
	return names
}
