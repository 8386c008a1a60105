package clientsim

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// draftKind says what a draft does when it is acknowledged.
type draftKind string

const (
	kindPublish draftKind = "publish"
	kindCreate  draftKind = "create"
	kindSend    draftKind = "send"
	kindAdd     draftKind = "add"
	kindRemove  draftKind = "remove"
	kindLeave   draftKind = "leave"
	kindCommit  draftKind = "commit"
	kindRejoin  draftKind = "rejoin"
	kindStock   draftKind = "stock"
)

// Draft is a write in the outbox: its exact bytes and key, on the disk before
// they are on the wire.
type Draft struct {
	Kind    draftKind    `json:"kind"`
	Call    Call         `json:"call"`
	GroupID []byte       `json:"groupId,omitempty"`
	Epoch   uint64       `json:"epoch,omitempty"` // of a message, or the one that a commit creates
	Text    string       `json:"text,omitempty"`
	Digest  digest       `json:"digest,omitzero"` // of the message or the commit
	DIDs    []syntax.DID `json:"dids,omitempty"`  // members added or removed
	// WithInfo is set where the group's new GroupInfo goes along.
	WithInfo bool `json:"withInfo,omitempty"`
}

// Convo is the convo that the draft writes to; a create has none yet.
func (d *Draft) Convo() string { return d.Call.Convo }

// journal puts a draft into the outbox, in one write with the MLS state that
// made it: after it, neither a lost answer nor a killed app can lead to a
// second ciphertext of the same text under the same key.
func (p *Phone) journal(d *Draft, changes map[string][]byte) (*Draft, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("%s: journal: %w", p.Name, err)
	}
	if changes == nil {
		changes = map[string][]byte{}
	}
	changes[outboxPrefix+d.Call.Key] = data
	return d, p.save(changes)
}

func (p *Phone) readDraft(key string) (*Draft, error) {
	data, ok := p.disk.Read(outboxPrefix + key)
	if !ok {
		return nil, fmt.Errorf("%s: no draft %s", p.Name, key)
	}
	d := &Draft{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("%s: draft %s: %w", p.Name, key, err)
	}
	return d, nil
}

// DraftPublish makes a KeyPackage and journals its publication.
func (p *Phone) DraftPublish() (*Draft, error) {
	if p.device == nil {
		return nil, ErrKilled
	}
	kp, err := p.device.KeyPackage()
	if err != nil {
		return nil, err
	}
	return p.draftPackage(kp)
}

func (p *Phone) draftPackage(kp KeyPackage) (*Draft, error) {
	return p.journal(&Draft{Kind: kindPublish, Call: publishCall(kp, p.suite, newKey())}, nil)
}

// DraftSend encrypts a text in the group's present epoch and journals it.
func (p *Phone) DraftSend(convo, text string) (*Draft, error) {
	_, group, err := p.open(convo)
	if err != nil {
		return nil, err
	}
	ciphertext, err := group.Encrypt([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	d := &Draft{
		Kind: kindSend, Text: text, Epoch: group.Epoch(), Digest: sha256.Sum256(ciphertext),
		Call: sendCall(convo, p.Account.DID, group.Epoch(), ciphertext, newKey()),
	}
	p.model.Attempted(convo, text, d.Digest)
	return p.journal(d, map[string][]byte{ownName(d.Digest): []byte(text)})
}

// ownName is the file that says that a ciphertext is this phone's own, which
// no MLS client can decrypt.
func ownName(d digest) string { return fmt.Sprintf("%s%x", ownPrefix, d[:]) }

// DraftCreate starts a group and journals the convo for it. The packages are
// those of the members, claimed before.
func (p *Phone) DraftCreate(members []syntax.DID, packages [][]byte) (*Draft, error) {
	if p.device == nil {
		return nil, ErrKilled
	}
	groupID := make([]byte, 16)
	if _, err := rand.Read(groupID); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	group, err := p.device.Create(groupID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	founded := &Staged{}
	if len(packages) > 0 {
		founded, err = group.StageAdd(packages...)
	} else {
		founded.GroupInfo, err = group.GroupInfo()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	if p.quiet {
		founded.GroupInfo = nil
	}
	return p.journal(&Draft{
		Kind: kindCreate, GroupID: groupID, DIDs: members, Epoch: founded.Epoch, WithInfo: founded.GroupInfo != nil,
		Call: createCall(groupID, p.suite, members, founded, newKey()),
	}, nil)
}

// DraftLeave journals this account's leaving. It needs no commit: an MLS
// member cannot commit its own removal.
func (p *Phone) DraftLeave(convo string) (*Draft, error) {
	if _, _, err := p.open(convo); err != nil {
		return nil, err
	}
	return p.journal(&Draft{
		Kind: kindLeave, DIDs: []syntax.DID{p.Account.DID}, Call: leaveCall(convo, newKey()),
	}, nil)
}

// Deliver sends a draft by the retry rule and settles it: with the answer, or
// with a refusal after which it must never take effect.
func (p *Phone) Deliver(ctx context.Context, d *Draft) (Answer, error) {
	answer, err := p.net.Do(ctx, p.Account, d.Call)
	if err == nil {
		return answer, p.Settle(d, answer)
	}
	var named *CallError
	if errors.As(err, &named) && named.Status/100 == 4 {
		if dropErr := p.Drop(d); dropErr != nil {
			return Answer{}, errors.Join(err, dropErr)
		}
	}
	return Answer{}, err
}

// Drop takes a refused draft out of the outbox, and its staged commit with it.
func (p *Phone) Drop(d *Draft) error {
	if p.device == nil {
		return ErrKilled
	}
	switch d.Kind {
	case kindSend:
		p.model.Refused(d.Convo(), d.Digest)
	case kindCreate:
		p.device.Forget(d.GroupID)
	case kindAdd, kindRemove, kindCommit:
		p.model.Refused(d.Convo(), d.Digest)
		if group, ok := p.device.Group(d.GroupID); ok {
			group.Discard()
		}
	case kindRejoin:
		p.model.Refused(d.Convo(), d.Digest)
		p.device.DiscardJoin(d.GroupID)
	}
	return p.save(map[string][]byte{outboxPrefix + d.Call.Key: nil})
}

// Settle does what an acknowledgement means and empties the outbox of the
// draft, in one write. An accepted commit is not merged here but when it is
// read in the log, behind the messages that came before it.
func (p *Phone) Settle(d *Draft, answer Answer) error {
	if p.device == nil {
		return ErrKilled
	}
	changes := map[string][]byte{outboxPrefix + d.Call.Key: nil}
	var err error
	switch d.Kind {
	case kindPublish:
		_, err = mlsapi.DecodePublishKeyPackageOutput(answer.Body)
	case kindStock:
		_, err = mlsapi.DecodePublishKeyPackagesOutput(answer.Body)
	case kindCreate:
		err = p.settleCreate(d, answer, changes)
	case kindSend:
		err = p.settleSend(d, answer)
	case kindAdd:
		err = p.settleAdd(d, answer)
	case kindCommit:
		err = p.settleCommit(d, answer)
	case kindRejoin:
		err = p.settleRejoin(d, answer, changes)
	case kindRemove, kindLeave:
		err = p.settleLeave(d, answer)
	}
	if err != nil {
		return fmt.Errorf("%s: %s answered %.200q: %w", p.Name, d.Call.Method, answer.Body, err)
	}
	p.model.Settled(p.Account, d.Call)
	return p.save(changes)
}
