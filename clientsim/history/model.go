package history

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// Model is the simulator's own record of what happened. It is built from what clients sent and what
// was acknowledged, never from what the server stores. The checks compare the server's log and
// every phone's inbox with the model. A Model is safe for concurrent use. A nil Model records
// nothing; it is for phones in convos of others, where a model could not know everything.
type Model struct {
	mu           sync.Mutex // guards the fields below
	convos       map[string]*ConvoModel
	claims       map[Digest]string // the claim that each KeyPackage went to
	acknowledged []AcknowledgedCall
	handedOver   int                          // convos that got a new admin because their last one went
	heads        map[string]map[string]string // heads of logs, by convo and phone
	// History also gets what streams must show. It may be nil.
	History *History
}

// Digest is the SHA-256 of a ciphertext.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a ciphertext.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// ConvoModel is the expected state of one convo.
type ConvoModel struct {
	ID         string
	GroupID    []byte
	Creator    syntax.DID
	firstEpoch uint64
	withInfo   bool                // created with a GroupInfo
	Sent       map[string]Sent     // acknowledged messages, by text
	Attempted  map[Digest]string   // text of every ciphertext that left a phone
	Commits    map[Digest]Commit   // every commit that left a phone
	Refused    map[Digest]struct{} // ciphertexts and commits that the server turned down
	Members    map[syntax.DID]*Member
	Gone       Gone // what a restore of the server has lost
}

// Commit is a commit that a phone made.
type Commit struct {
	Sender   syntax.DID
	Epoch    uint64 // the epoch that it creates
	Public   bool   // a PublicMessage
	WithInfo bool   // sent with the new epoch's GroupInfo
	Seq      int64  // seq of the acknowledged commit; 0 means no acknowledgement
}

// Sent is one acknowledged message.
type Sent struct {
	Text   string
	Sender syntax.DID
	Digest Digest
	Epoch  uint64
	ID     string
	Seq    int64
}

// Entry is the digest of the message as an entry of a log.
func (s Sent) Entry() EntryDigest {
	return DigestEntry(false, s.ID, s.Sender.String(), int64(s.Epoch), s.Digest)
}

// ExchangeHeads records the newest head of a convo's log that a phone has checked. It returns the
// newest heads of the other phones, by phone. A nil Model returns no heads.
func (m *Model) ExchangeHeads(convo, phone, head string) map[string]string {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.heads == nil {
		m.heads = map[string]map[string]string{}
	}
	if m.heads[convo] == nil {
		m.heads[convo] = map[string]string{}
	}
	others := maps.Clone(m.heads[convo])
	delete(others, phone)
	m.heads[convo][phone] = head
	return others
}

// Founded reports whether did sees the convo from its beginning.
func (c *ConvoModel) Founded(did syntax.DID) bool {
	return c.Members[did] != nil && c.Members[did].from == 1
}

// Live returns the present members, sorted.
func (c *ConvoModel) Live() []syntax.DID {
	var dids []syntax.DID
	for did, member := range c.Members {
		if member.Live {
			dids = append(dids, did)
		}
	}
	slices.Sort(dids)
	return dids
}

// Member is what one DID may see: the log from a seq on.
type Member struct {
	from  int64 // seq of the commit that added it; 1 for a founder
	Live  bool
	admin bool
	// Cursor is the largest cursor that the server answered with. For an added member, Cursor starts
	// at the commit that added the member.
	Cursor   int64
	reported int64 // the largest seq that the member reported, answered or not
}

// AcknowledgedCall is a write that was acknowledged. The final checks send it again.
type AcknowledgedCall struct {
	Who  *xrpc.Account
	Call xrpc.Call
	At   time.Time // when the answer came
}

// record runs do, which changes the model. A nil Model records nothing.
func (m *Model) record(do func()) {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		do()
	}
}

// NewModel returns an empty model.
func NewModel() *Model {
	return &Model{convos: map[string]*ConvoModel{}, claims: map[Digest]string{}}
}

// Created records a convo and its founders.
func (m *Model) Created(id string, groupID []byte, epoch uint64, withInfo bool, creator syntax.DID,
	members []syntax.DID) {
	m.record(func() {
		if _, ok := m.convos[id]; ok {
			return // a replay
		}
		c := &ConvoModel{
			ID: id, GroupID: groupID, firstEpoch: epoch, withInfo: withInfo,
			Sent: map[string]Sent{}, Attempted: map[Digest]string{}, Commits: map[Digest]Commit{},
			Refused: map[Digest]struct{}{},
			Creator: creator,
			Members: map[syntax.DID]*Member{creator: {from: 1, Live: true, admin: true}},
		}
		for _, did := range members {
			c.Members[did] = &Member{from: 1, Live: true}
		}
		m.convos[id] = c
		if m.History != nil {
			m.History.Created(id, creator, append([]syntax.DID{creator}, members...)...)
		}
	})
}

// Claimed records the KeyPackages that a claim got. claim is the key of the claim. It is an error
// if a KeyPackage went to another claim before.
func (m *Model) Claimed(claim string, packages [][]byte) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kp := range packages {
		d := Digest(sha256.Sum256(kp))
		if before, ok := m.claims[d]; ok && before != claim {
			return fmt.Errorf("KeyPackage %x was handed out for the claims %s and %s", d[:4], before, claim)
		}
		m.claims[d] = claim
	}
	return nil
}

// Attempted records that a phone is about to send a ciphertext.
func (m *Model) Attempted(convo, text string, d Digest) {
	m.record(func() { m.convos[convo].Attempted[d] = text })
}

// AttemptedCommit records that a phone is about to send a commit.
func (m *Model) AttemptedCommit(convo string, d Digest, c Commit) {
	m.record(func() { m.convos[convo].Commits[d] = c })
}

// Committed records that a commit was acknowledged at seq.
func (m *Model) Committed(convo string, d Digest, seq int64) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.convos[convo].Commits[d]
	if c.Seq != 0 && c.Seq != seq {
		return fmt.Errorf("acknowledged before at seq %d", c.Seq)
	}
	c.Seq = seq
	m.convos[convo].Commits[d] = c
	delete(m.convos[convo].Gone.Commits, d)
	if m.History != nil && m.History.Entry(convo, seq, DigestEntry(true, "", c.Sender.String(), int64(c.Epoch), d)) {
		return fmt.Errorf("another entry was acknowledged at seq %d", seq)
	}
	return nil
}

// Refused records that the server refused a ciphertext or a commit. It must never appear in the
// log, unless it stands there: a readable proposal has the same bytes each time that its sender
// makes it.
func (m *Model) Refused(convo string, d Digest) {
	m.record(func() {
		c := m.convos[convo]
		text, attempted := c.Attempted[d]
		if attempted && c.Sent[text].Digest == d || c.Commits[d].Seq != 0 {
			return
		}
		c.Refused[d] = struct{}{}
	})
}

// Acked records an acknowledged message, and reports whether it is new. The same text acknowledged
// under two ids is an error, and the first one stays.
func (m *Model) Acked(convo string, s Sent) (fresh bool, err error) {
	if m == nil {
		return true, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, ok := m.convos[convo].Sent[s.Text]
	if ok && before != s {
		return false, fmt.Errorf("acknowledged before as %s at seq %d", before.ID, before.Seq)
	}
	m.convos[convo].Sent[s.Text] = s
	delete(m.convos[convo].Gone.Sent, s.Text)
	if m.History != nil && m.History.Entry(convo, s.Seq, s.Entry()) {
		return !ok, fmt.Errorf("another entry was acknowledged at seq %d", s.Seq)
	}
	return !ok, nil
}

// Joined records that a commit by a member added others at seq.
func (m *Model) Joined(convo string, by syntax.DID, seq int64, dids []syntax.DID) {
	m.record(func() {
		var fresh []syntax.DID
		for _, did := range dids {
			if old, ok := m.convos[convo].Members[did]; ok && old.Live {
				continue // a replay was acknowledged
			}
			m.convos[convo].Members[did] = &Member{from: seq, Live: true, Cursor: seq}
			delete(m.convos[convo].Gone.Joined, did)
			fresh = append(fresh, did)
		}
		if m.History != nil && len(fresh) > 0 {
			m.History.Joined(convo, by, seq, fresh...)
		}
	})
}

// Left records that a member left, or that a commit of another member removed it at seq.
func (m *Model) Left(convo string, by, did syntax.DID, seq int64) {
	m.record(func() {
		old, ok := m.convos[convo].Members[did]
		if !ok || !old.Live {
			return
		}
		old.Live, old.admin = false, false
		delete(m.convos[convo].Gone.Left, did)
		switch {
		case m.History == nil:
		case by == did:
			// No other client writes now, so the member left at the end of the log.
			m.History.Left(convo, mlsapi.MembershipEventChangeLeft, by, did, m.History.End(convo))
		default:
			m.History.Left(convo, mlsapi.MembershipEventChangeRemoved, by, did, seq)
		}
	})
}

// MarksRead records that a member is about to report seq as read. It returns the smallest cursor
// that the server may answer with. Devices of one account report at the same time, so the answer
// can also be what another device reports meanwhile.
func (m *Model) MarksRead(convo string, did syntax.DID, seq int64) (atLeast int64) {
	if m == nil {
		return seq
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	member := m.convos[convo].Members[did]
	member.reported = max(member.reported, seq)
	return max(member.Cursor, seq)
}

// MarkedRead records the cursor that the server answered with. It must be no smaller than atLeast,
// and no larger than the largest seq that the member ever reported.
func (m *Model) MarkedRead(convo string, did syntax.DID, atLeast, answer int64) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	member := m.convos[convo].Members[did]
	atMost := max(member.Cursor, member.reported)
	if answer < atLeast || answer > atMost {
		return fmt.Errorf("the cursor stands at %d, and must stand between %d and %d", answer, atLeast, atMost)
	}
	member.Cursor = max(member.Cursor, answer)
	return nil
}

// Acknowledged records an acknowledged write. Writes without a key are ignored.
func (m *Model) Acknowledged(who *xrpc.Account, call xrpc.Call) {
	if call.Key != "" {
		m.record(func() { m.acknowledged = append(m.acknowledged, AcknowledgedCall{who, call, time.Now()}) })
	}
}

// Live reports whether did is a member now.
func (m *Model) Live(convo string, did syntax.DID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.convos[convo]
	if !ok {
		return false
	}
	member, ok := c.Members[did]
	return ok && member.Live
}

// Snapshot copies the convos for the checks.
func (m *Model) Snapshot() []ConvoModel {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ConvoModel
	for _, id := range slices.Sorted(maps.Keys(m.convos)) {
		c := *m.convos[id]
		c.Sent, c.Attempted, c.Refused = maps.Clone(c.Sent), maps.Clone(c.Attempted), maps.Clone(c.Refused)
		c.Commits, c.Gone = maps.Clone(c.Commits), c.Gone.clone()
		c.Members = map[syntax.DID]*Member{}
		for did, member := range m.convos[id].Members {
			copied := *member
			c.Members[did] = &copied
		}
		out = append(out, c)
	}
	return out
}

// AcknowledgedCalls returns the acknowledged writes with a key that has not expired.
func (m *Model) AcknowledgedCalls() []AcknowledgedCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.acknowledged)
}
