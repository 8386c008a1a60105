// Package history says what must be true. Model and History record what clients sent and what was
// acknowledged. Ledger watches the answers under each idempotency key, and Observer the events of a
// subscriber. The checks compare the server's view with these records. Nothing here makes a call.
package history

import (
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// History records the acknowledged changes of the convos that streams watch. Observers compare the
// events that they saw with the History. A History is safe for concurrent use.
type History struct {
	mu       sync.Mutex // guards the fields below, and the convo histories
	convos   map[string]*convoHistory
	personal map[syntax.DID][]personalEvent
}

// personalEvent is an event about one account's own device.
type personalEvent struct {
	kind   string
	convo  string // for welcome and invitation
	device string
	epoch  int64  // for welcome and invitation
	change string // for keyPackages
}

func personalEventOf(h *xrpc.Event) personalEvent {
	return personalEvent{kind: h.Kind, convo: h.Convo, device: h.Device, epoch: h.Epoch, change: h.Change}
}

type convoHistory struct {
	id          string
	log         []EntryDigest // by seq, from 1; 0 means not acknowledged
	roster      []rosterChange
	memberships map[syntax.DID][]membership
}

// EntryDigest is a hash of everything that an event must say about a log entry.
type EntryDigest uint64

// rosterChange is one change of a roster.
type rosterChange struct {
	step   int // the changes of one write have the same step
	did    syntax.DID
	change string
	by     syntax.DID
	seq    int64
}

// membership is one stay of an account in a convo: the part of the log and of the roster changes
// that the account may see.
type membership struct {
	from, to int64 // the member sees the entries with from < seq <= to
	first    int   // index in roster of the member's joining
	last     int   // index in roster of the member's leaving
	closed   bool
}

var digestSeed = maphash.MakeSeed()

// DigestEntry hashes a log entry. A commit's event has no id.
func DigestEntry(commit bool, id, sender string, epoch int64, body Digest) EntryDigest {
	if commit {
		id = "commit"
	}
	return EntryDigest(maphash.Comparable(digestSeed, struct {
		id, sender string
		epoch      int64
		body       Digest
	}{id, sender, epoch, body}))
}

// eventDigest hashes the log entry that an event shows.
func eventDigest(h *xrpc.Event) EntryDigest {
	return DigestEntry(h.Kind == xrpc.EventCommit, h.ID, h.Sender, h.Epoch, sha256.Sum256(h.Body))
}

// New returns an empty history.
func New() *History {
	return &History{convos: map[string]*convoHistory{}, personal: map[syntax.DID][]personalEvent{}}
}

// Created records a new convo and its founders, the creator first.
func (c *History) Created(convo string, by syntax.DID, dids ...syntax.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &convoHistory{id: convo, memberships: map[syntax.DID][]membership{}}
	c.convos[convo] = s
	s.joined(dids, by, 0)
}

// Entry records an acknowledged log entry. It reports whether another entry was acknowledged at the
// same seq.
func (c *History) Entry(convo string, seq int64, m EntryDigest) (clash bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.convos[convo]
	for int64(len(s.log)) < seq {
		s.log = append(s.log, 0)
	}
	clash = s.log[seq-1] != 0 && s.log[seq-1] != m
	s.log[seq-1] = m
	return clash
}

// Joined records that a commit at seq added members.
func (c *History) Joined(convo string, by syntax.DID, seq int64, dids ...syntax.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.convos[convo].joined(dids, by, seq)
}

func (s *convoHistory) joined(dids []syntax.DID, by syntax.DID, seq int64) {
	step := s.step()
	for _, did := range dids {
		s.memberships[did] = append(s.memberships[did], membership{from: seq, first: len(s.roster)})
		s.roster = append(s.roster,
			rosterChange{step: step, did: did, change: mlsapi.MembershipEventChangeJoined, by: by, seq: seq})
	}
}

// Left records that a member left or was removed when the log ended at seq.
func (c *History) Left(convo, change string, by, did syntax.DID, seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.convos[convo]
	stays := s.memberships[did]
	last := &stays[len(stays)-1]
	last.to, last.closed, last.last = seq, true, len(s.roster)
	s.roster = append(s.roster, rosterChange{step: s.step(), did: did, change: change, by: by, seq: seq})
}

// Welcomed records that a Welcome waits for a device.
func (c *History) Welcomed(did syntax.DID, convo, device string, epoch int64) {
	c.addPersonal(did, personalEvent{kind: xrpc.EventWelcome, convo: convo, device: device, epoch: epoch})
}

// Invited records that the home of did learns of a Welcome at another service.
func (c *History) Invited(did syntax.DID, convo, device string, epoch int64) {
	c.addPersonal(did, personalEvent{kind: xrpc.EventInvitation, convo: convo, device: device, epoch: epoch})
}

func (c *History) addPersonal(did syntax.DID, o personalEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.personal[did] = append(c.personal[did], o)
}

// personalOf returns the events about an account's own devices.
func (c *History) personalOf(did syntax.DID) []personalEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.personal[did])
}

func (s *convoHistory) step() int {
	if len(s.roster) == 0 {
		return 0
	}
	return s.roster[len(s.roster)-1].step + 1
}

// Log returns the digests of a convo's entries by seq, from 1. 0 stands for an entry that was not
// acknowledged.
func (c *History) Log(convo string) []EntryDigest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.convos[convo].log)
}

// End returns the seq of a convo's last entry.
func (c *History) End(convo string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.convos[convo].log))
}

// convosOf returns the convos that an account is or was in, ordered by id.
func (c *History) convosOf(did syntax.DID) []*convoHistory {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*convoHistory
	for _, s := range c.convos {
		if len(s.memberships[did]) > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *convoHistory) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}

// end returns the seq of the last entry that a membership may see.
func (s *convoHistory) end(p membership) int64 {
	if p.closed {
		return p.to
	}
	return int64(len(s.log))
}

// changes returns the roster changes that a member must see: its own joining, every later change,
// and its leaving. It may or may not see the other accounts that joined by the same write.
func (s *convoHistory) changes(p membership) []rosterChange {
	last := len(s.roster) - 1
	if p.closed {
		last = p.last
	}
	own := s.roster[p.first]
	seen := []rosterChange{own}
	for _, t := range s.roster[p.first+1 : last+1] {
		if t.step != own.step {
			seen = append(seen, t)
		}
	}
	return seen
}

// ViolationKind sorts broken promises for the totals.
type ViolationKind string

const (
	// Lost means that something acknowledged is missing.
	Lost ViolationKind = "lost"
	// Duplicated means that something is there twice.
	Duplicated ViolationKind = "duplicated"
	// Broken means any other broken promise.
	Broken ViolationKind = "violated"
)

// Violation is one broken promise.
type Violation struct {
	Kind  ViolationKind `json:"kind"`
	Convo string        `json:"convo,omitempty"`
	Who   string        `json:"who,omitempty"` // who saw it
	What  string        `json:"what"`
}

func (v Violation) String() string {
	s := fmt.Sprintf("%s: %s", v.Kind, v.What)
	if v.Who != "" {
		s += " (seen by " + v.Who + ")"
	}
	if v.Convo != "" {
		s += " in convo " + v.Convo
	}
	return s
}
