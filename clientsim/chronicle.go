package clientsim

import (
	"crypto/sha256"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Chronicle is what happened in the convos whose streams are watched, as it was acknowledged to those who did it. The vigils of
// subscribers are held against it. It is safe for concurrent use.
type Chronicle struct {
	mu      sync.Mutex // guards what follows, and the stories
	stories map[string]*story
	omens   map[syntax.DID][]omen
}

// omen is an event about a device of somebody's.
type omen struct {
	kind   string
	convo  string // welcome
	device string
	epoch  int64  // welcome
	change string // keyPackages
}

func (h *happening) omen() omen {
	return omen{kind: h.kind, convo: h.convo, device: h.device, epoch: h.epoch, change: h.change}
}

// story is one convo's.
type story struct {
	id      string
	log     []mark // by seq, from 1; 0: not acknowledged
	roster  []turn
	tenures map[syntax.DID][]tenure
}

// mark is a fingerprint of a log entry: all that an event must say of it.
type mark uint64

// turn is one change of a roster.
type turn struct {
	step   int // those of one write have the same
	did    syntax.DID
	change string
	by     syntax.DID
	seq    int64
}

// tenure is a membership: from a place in the log to another, and in the roster's changes.
type tenure struct {
	from, to int64 // the entries behind from are the member's, up to to
	first    int   // the index of its joining in roster
	last     int   // of its leaving
	closed   bool
}

var markSeed = maphash.MakeSeed()

// markOf makes the mark of a log entry. A commit's event has no id.
func markOf(commit bool, id, sender string, epoch int64, body digest) mark {
	if commit {
		id = "commit"
	}
	return mark(maphash.Comparable(markSeed, struct {
		id, sender string
		epoch      int64
		body       digest
	}{id, sender, epoch, body}))
}

// mark is the one of an event that tells of a log entry.
func (h *happening) mark() mark {
	return markOf(h.kind == toldCommit, h.id, h.sender, h.epoch, sha256.Sum256(h.body))
}

// NewChronicle returns one of nothing.
func NewChronicle() *Chronicle {
	return &Chronicle{stories: map[string]*story{}, omens: map[syntax.DID][]omen{}}
}

// Begun notes a new convo and its founders, the creator first.
func (c *Chronicle) Begun(convo string, by syntax.DID, dids ...syntax.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &story{id: convo, tenures: map[syntax.DID][]tenure{}}
	c.stories[convo] = s
	s.joined(dids, by, 0)
}

// Entry notes a log entry that was acknowledged. It reports whether another was there.
func (c *Chronicle) Entry(convo string, seq int64, m mark) (clash bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[convo]
	for int64(len(s.log)) < seq {
		s.log = append(s.log, 0)
	}
	clash = s.log[seq-1] != 0 && s.log[seq-1] != m
	s.log[seq-1] = m
	return clash
}

// Joined notes that a commit at seq brought people in.
func (c *Chronicle) Joined(convo string, by syntax.DID, seq int64, dids ...syntax.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stories[convo].joined(dids, by, seq)
}

func (s *story) joined(dids []syntax.DID, by syntax.DID, seq int64) {
	step := s.step()
	for _, did := range dids {
		s.tenures[did] = append(s.tenures[did], tenure{from: seq, first: len(s.roster)})
		s.roster = append(s.roster, turn{step: step, did: did, change: mlsapi.MembershipEventChangeJoined, by: by, seq: seq})
	}
}

// Gone notes that somebody left, or was removed, when the log ended at seq.
func (c *Chronicle) Gone(convo, change string, by, did syntax.DID, seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[convo]
	tenures := s.tenures[did]
	last := &tenures[len(tenures)-1]
	last.to, last.closed, last.last = seq, true, len(s.roster)
	s.roster = append(s.roster, turn{step: s.step(), did: did, change: change, by: by, seq: seq})
}

// Welcomed notes that a Welcome waits for a device.
func (c *Chronicle) Welcomed(did syntax.DID, convo, device string, epoch int64) {
	c.note(did, omen{kind: toldWelcome, convo: convo, device: device, epoch: epoch})
}

// Signalled notes that a device's KeyPackages want to be looked after.
func (c *Chronicle) Signalled(did syntax.DID, device, change string) {
	c.note(did, omen{kind: toldKeyPackages, device: device, change: change})
}

func (c *Chronicle) note(did syntax.DID, o omen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.omens[did] = append(c.omens[did], o)
}

// Forget drops the events about the devices of people who did not listen yet.
func (c *Chronicle) Forget(dids ...syntax.DID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, did := range dids {
		delete(c.omens, did)
	}
}

// omensOf are the events about somebody's devices.
func (c *Chronicle) omensOf(did syntax.DID) []omen {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.omens[did])
}

func (s *story) step() int {
	if len(s.roster) == 0 {
		return 0
	}
	return s.roster[len(s.roster)-1].step + 1
}

// End is where a convo's log ends.
func (c *Chronicle) End(convo string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.stories[convo].log))
}

// of are the stories that somebody has a part in, ordered.
func (c *Chronicle) of(did syntax.DID) []*story {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*story
	for _, s := range c.stories {
		if len(s.tenures[did]) > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *story) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}

// end is the last entry that belongs to a tenure.
func (s *story) end(p tenure) int64 {
	if p.closed {
		return p.to
	}
	return int64(len(s.log))
}

// turns are the changes of the roster that a member is told of: its own joining, what happens after that write, and its leaving.
// Of those who joined by the same write as itself it may be told or not.
func (s *story) turns(p tenure) []turn {
	last := len(s.roster) - 1
	if p.closed {
		last = p.last
	}
	own := s.roster[p.first]
	told := []turn{own}
	for _, t := range s.roster[p.first+1 : last+1] {
		if t.step != own.step {
			told = append(told, t)
		}
	}
	return told
}
