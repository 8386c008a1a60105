package clientsim

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Model is the simulator's own account of what happened, kept from what was
// sent and what was acknowledged and never from what the server stores. The
// checker holds the server's log and every phone's inbox against it. It is
// safe for concurrent use.
type Model struct {
	mu      sync.Mutex // guards what follows
	convos  map[string]*convoModel
	claims  map[digest]string // the claim that each KeyPackage went to
	settled []settled
	// chronicle, if there is one, is told what streams have to tell.
	chronicle *Chronicle
}

// digest names a ciphertext.
type digest [sha256.Size]byte

func digestOf(b []byte) digest { return sha256.Sum256(b) }

// convoModel is one convo as it should be.
type convoModel struct {
	id         string
	groupID    []byte
	firstEpoch uint64
	withInfo   bool                // created with a GroupInfo
	sent       map[string]sent     // acknowledged, by text
	attempted  map[digest]string   // text of every ciphertext that left a phone
	commits    map[digest]commit   // every commit that left a phone
	refused    map[digest]struct{} // ciphertexts and commits that the server turned down
	members    map[syntax.DID]*membership
}

// commit is a commit that a phone has made.
type commit struct {
	sender   syntax.DID
	epoch    uint64 // the one that it creates
	public   bool   // a PublicMessage
	withInfo bool   // sent with the new epoch's GroupInfo
	seq      int64  // where it was acknowledged; 0: not heard of
}

// sent is one acknowledged message.
type sent struct {
	text   string
	sender syntax.DID
	digest digest
	epoch  uint64
	id     string
	seq    int64
}

// live lists the present members in order.
func (c *convoModel) live() []syntax.DID {
	var dids []syntax.DID
	for did, member := range c.members {
		if member.live {
			dids = append(dids, did)
		}
	}
	slices.Sort(dids)
	return dids
}

// membership is what one DID may see: the log from seq from on.
type membership struct {
	from int64 // seq of the commit that added it; 1 for a founder
	live bool
	// cursor is the largest seq that it has reported as read. One who was added
	// starts at the commit that did it.
	cursor int64
}

// settled is a write that was acknowledged, for asking again at the end.
type settled struct {
	who  *Account
	call Call
}

// NewModel returns a model of nothing.
func NewModel() *Model {
	return &Model{convos: map[string]*convoModel{}, claims: map[digest]string{}}
}

// Created notes a convo and its founders.
func (m *Model) Created(id string, groupID []byte, epoch uint64, withInfo bool, creator syntax.DID, members []syntax.DID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.convos[id]; ok {
		return // a replay
	}
	c := &convoModel{
		id: id, groupID: groupID, firstEpoch: epoch, withInfo: withInfo,
		sent: map[string]sent{}, attempted: map[digest]string{}, commits: map[digest]commit{}, refused: map[digest]struct{}{},
		members: map[syntax.DID]*membership{creator: {from: 1, live: true}},
	}
	for _, did := range members {
		c.members[did] = &membership{from: 1, live: true}
	}
	m.convos[id] = c
	if m.chronicle != nil {
		m.chronicle.Begun(id, creator, append([]syntax.DID{creator}, members...)...)
	}
}

// Claimed notes that KeyPackages were handed out for a claim, known by its
// key. No KeyPackage goes to two.
func (m *Model) Claimed(claim string, packages [][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kp := range packages {
		d := digest(sha256.Sum256(kp))
		if before, ok := m.claims[d]; ok && before != claim {
			return fmt.Errorf("KeyPackage %x was handed out for the claims %s and %s", d[:4], before, claim)
		}
		m.claims[d] = claim
	}
	return nil
}

// Attempted notes that a ciphertext is about to leave a phone.
func (m *Model) Attempted(convo, text string, d digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.convos[convo].attempted[d] = text
}

// AttemptedCommit notes that a commit is about to leave a phone.
func (m *Model) AttemptedCommit(convo string, d digest, c commit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.convos[convo].commits[d] = c
}

// Committed notes that a commit was acknowledged at seq.
func (m *Model) Committed(convo string, d digest, seq int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.convos[convo].commits[d]
	if c.seq != 0 && c.seq != seq {
		return fmt.Errorf("acknowledged before at seq %d", c.seq)
	}
	c.seq = seq
	m.convos[convo].commits[d] = c
	if m.chronicle != nil && m.chronicle.Entry(convo, seq, markOf(true, "", c.sender.String(), int64(c.epoch), d)) {
		return fmt.Errorf("another entry was acknowledged at seq %d", seq)
	}
	return nil
}

// Refused notes that the server turned a ciphertext or a commit down: it must
// never appear.
func (m *Model) Refused(convo string, d digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.convos[convo].refused[d] = struct{}{}
}

// Acked notes an acknowledged message, and reports whether it is news. The same
// text acknowledged under two ids is a duplicate: the first stands.
func (m *Model) Acked(convo string, s sent) (fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, ok := m.convos[convo].sent[s.text]
	if ok && before != s {
		return false, fmt.Errorf("acknowledged before as %s at seq %d", before.id, before.seq)
	}
	m.convos[convo].sent[s.text] = s
	if m.chronicle != nil && m.chronicle.Entry(convo, s.seq, markOf(false, s.id, s.sender.String(), int64(s.epoch), s.digest)) {
		return !ok, fmt.Errorf("another entry was acknowledged at seq %d", s.seq)
	}
	return !ok, nil
}

// Joined notes that a commit of by's at seq added members.
func (m *Model) Joined(convo string, by syntax.DID, seq int64, dids []syntax.DID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var fresh []syntax.DID
	for _, did := range dids {
		if old, ok := m.convos[convo].members[did]; ok && old.live {
			continue // the acknowledgement of a replay
		}
		m.convos[convo].members[did] = &membership{from: seq, live: true, cursor: seq}
		fresh = append(fresh, did)
	}
	if m.chronicle != nil && len(fresh) > 0 {
		m.chronicle.Joined(convo, by, seq, fresh...)
	}
}

// Left notes that a member left, or was removed by another's commit at seq.
func (m *Model) Left(convo string, by, did syntax.DID, seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.convos[convo].members[did]
	if !ok || !old.live {
		return
	}
	old.live = false
	switch {
	case m.chronicle == nil:
	case by == did:
		// Nobody else writes just now, or it would not be known where this stands.
		m.chronicle.Gone(convo, mlsapi.MembershipEventChangeLeft, by, did, m.chronicle.End(convo))
	default:
		m.chronicle.Gone(convo, mlsapi.MembershipEventChangeRemoved, by, did, seq)
	}
}

// MarkedRead notes that a member reported seq as read and was told that it
// stands at answer: the largest of all that it reported, and never less.
func (m *Model) MarkedRead(convo string, did syntax.DID, seq, answer int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	member := m.convos[convo].members[did]
	before := member.cursor
	member.cursor = max(before, seq)
	if answer != member.cursor {
		return fmt.Errorf("the cursor stood at %d, %d was reported, and it stands at %d", before, seq, answer)
	}
	return nil
}

// Settled notes an acknowledged write with a key.
func (m *Model) Settled(who *Account, call Call) {
	if call.Key == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = append(m.settled, settled{who, call})
}

// Expired notes that a write's key is new: asked again it is no replay.
func (m *Model) Expired(call Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = slices.DeleteFunc(m.settled, func(s settled) bool { return s.call.Method == call.Method && s.call.Key == call.Key })
}

// live reports whether did is a member now.
func (m *Model) live(convo string, did syntax.DID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.convos[convo]
	if !ok {
		return false
	}
	member, ok := c.members[did]
	return ok && member.live
}

// snapshot copies the convos for the checker.
func (m *Model) snapshot() []convoModel {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []convoModel
	for _, id := range slices.Sorted(maps.Keys(m.convos)) {
		c := *m.convos[id]
		c.sent, c.attempted, c.refused = maps.Clone(c.sent), maps.Clone(c.attempted), maps.Clone(c.refused)
		c.commits = maps.Clone(c.commits)
		c.members = map[syntax.DID]*membership{}
		for did, member := range m.convos[id].members {
			copied := *member
			c.members[did] = &copied
		}
		out = append(out, c)
	}
	return out
}

func (m *Model) settledCalls() []settled {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.settled)
}
