package clientsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"mlsd/api/mlsapi"
)

// Phone is one device of one account, and behaves as a phone must: it writes
// ciphertext and key to its disk before it sends them, Welcome bytes before it
// joins with them, and plaintext together with the ratchet that decrypted it.
// The app can be killed at any time (Kill) and comes back with what the disk
// holds (Launch). It is not safe for concurrent use.
type Phone struct {
	Name    string
	Account *Account

	net   *Client
	model *Model
	stats *Stats
	suite Suite
	disk  *Disk
	// shared is set where the account has further devices: such a phone asks
	// for its Welcome by KeyPackageRef.
	shared bool
	// former is the signature key of the device in whose place this one is, for
	// the leaf that a rejoin takes away; nil where there was none.
	former []byte
	// quiet keeps the GroupInfos of this phone's commits to itself.
	quiet bool

	// What follows is the app's memory and is gone when the app is killed.
	device  Device
	threads map[string]*Thread // by convo id
}

// Thread is what a phone knows of one convo.
type Thread struct {
	ConvoID string `json:"convoId"`
	GroupID []byte `json:"groupId"`
	// First and Cursor are the first and the last seq that were read.
	First  int64 `json:"first"`
	Cursor int64 `json:"cursor"`
	// Entered is the epoch in which this device came into the group. It has no
	// key for what its account was sent before.
	Entered uint64 `json:"entered"`
}

// ErrKilled is returned by every method of a phone whose app is not running.
var ErrKilled = errors.New("clientsim: the app is not running")

// newPhone makes a phone with a device of its own and launches it.
func newPhone(name string, account *Account, suite Suite, net *Client, model *Model) (*Phone, error) {
	device, err := NewDevice(account.DID.String(), suite)
	if err != nil {
		return nil, err
	}
	p := &Phone{Name: name, Account: account, net: net, model: model, stats: net.stats, suite: suite, disk: NewDisk()}
	p.device = device
	if err := p.save(nil); err != nil {
		return nil, err
	}
	return p, p.Launch()
}

// Kill ends the app as a phone's system does: without a word.
func (p *Phone) Kill() { p.device, p.threads = nil, nil }

// Launch starts the app from what is on the disk. Drafts that were not settled
// are still in the outbox: see Flush.
func (p *Phone) Launch() error {
	data, ok := p.disk.Read(deviceName)
	if !ok {
		return fmt.Errorf("%s: no device on the disk", p.Name)
	}
	device, err := ImportDevice(data)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	threads := map[string]*Thread{}
	for _, name := range p.disk.List(threadPrefix) {
		data, _ := p.disk.Read(name)
		thread := &Thread{}
		if err := json.Unmarshal(data, thread); err != nil {
			return fmt.Errorf("%s: %s: %w", p.Name, name, err)
		}
		threads[thread.ConvoID] = thread
	}
	p.device, p.threads = device, threads
	return nil
}

// Names of files on a phone's disk.
const (
	deviceName    = "device"
	threadPrefix  = "thread/"
	inboxPrefix   = "inbox/"
	outboxPrefix  = "outbox/"
	ownPrefix     = "own/"
	welcomePrefix = "welcome/"
)

// save writes the device and the given files in one go.
func (p *Phone) save(changes map[string][]byte) error {
	data, err := p.device.Export()
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	all := map[string][]byte{deviceName: data}
	for name, content := range changes {
		all[name] = content
	}
	p.disk.Write(all)
	return nil
}

// open returns a convo's thread and group.
func (p *Phone) open(convo string) (*Thread, Group, error) {
	if p.device == nil {
		return nil, nil, ErrKilled
	}
	thread, ok := p.threads[convo]
	if !ok {
		return nil, nil, fmt.Errorf("%s: no thread for convo %s", p.Name, convo)
	}
	group, ok := p.device.Group(thread.GroupID)
	if !ok {
		return nil, nil, fmt.Errorf("%s: no group for convo %s", p.Name, convo)
	}
	return thread, group, nil
}

// Group returns the MLS group behind a convo.
func (p *Phone) Group(convo string) (Group, error) {
	_, group, err := p.open(convo)
	return group, err
}

// Publish publishes n fresh KeyPackages.
func (p *Phone) Publish(ctx context.Context, n int) error {
	for range n {
		draft, err := p.DraftPublish()
		if err != nil {
			return err
		}
		if _, err := p.Deliver(ctx, draft); err != nil {
			return err
		}
	}
	return nil
}

// Send sends one message, until it is acknowledged. If the epoch moves on
// first, the server has stored nothing under the key, and the text is
// encrypted anew, under a new key.
func (p *Phone) Send(ctx context.Context, convo, text string) error {
	for range epochPatience {
		draft, err := p.DraftSend(convo, text)
		if err != nil {
			return err
		}
		if _, err = p.Deliver(ctx, draft); ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
		if err := p.Sync(ctx, convo); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %q met another epoch %d times", p.Name, text, epochPatience)
}

// epochPatience bounds how often a write chases the epoch.
const epochPatience = 50

// Flush delivers the drafts that a killed app left in its outbox.
func (p *Phone) Flush(ctx context.Context) error {
	for _, name := range p.disk.List(outboxPrefix) {
		draft, err := p.readDraft(strings.TrimPrefix(name, outboxPrefix))
		if err != nil {
			return err
		}
		_, err = p.Deliver(ctx, draft)
		switch {
		case err == nil:
		case ErrorName(err) == mlsapi.ErrEpochMismatch && draft.Kind == kindSend:
			if err := p.Sync(ctx, draft.Convo()); err != nil {
				return err
			}
			if err := p.Send(ctx, draft.Convo(), draft.Text); err != nil {
				return err
			}
		case ErrorName(err) == mlsapi.ErrEpochMismatch:
			// A commit that lost: whoever wanted it can want it again.
		default:
			return err
		}
	}
	return nil
}
