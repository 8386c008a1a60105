package quota

import (
	"time"

	"github.com/google/uuid"
)

// Cost is how much a request uses of one resource.
type Cost struct {
	Of Resource
	N  int64
}

// Spending is the use of one request. What it takes counts at once. If the request then fails, call
// Return. A nil Spending has no limits. Methods are not safe for concurrent use.
type Spending struct {
	c        *Counter
	now, day int64
	address  string
	accounts [kinds]*account // nil means not counted
	taken    [kinds][resources]int64
	message  bool // TakeMessage has counted the message
}

// Take counts the costs for the caller and the caller's address, or refuses all of them. The error
// is an *ExceededError.
func (s *Spending) Take(costs ...Cost) error {
	if s == nil {
		return nil
	}
	for i, cost := range costs {
		if err := s.takeBoth(cost); err != nil {
			for _, done := range costs[:i] {
				s.Give(done)
			}
			return err
		}
	}
	return nil
}

func (s *Spending) takeBoth(cost Cost) error {
	if err := s.take(didSubject, cost); err != nil {
		return err
	}
	err := s.take(addressSubject, cost)
	if err != nil {
		s.give(didSubject, cost)
	}
	return err
}

func (s *Spending) take(k subjectKind, cost Cost) error {
	a, limit := s.accounts[k], int64(0)
	if a != nil {
		limit = s.c.limit(k, a, cost.Of)
	}
	if limit == 0 || cost.N == 0 {
		return nil
	}
	used, ok := a.take(cost.Of, cost.N, limit, s.now)
	if !ok {
		return s.exceeded(s.c.names[k][cost.Of], used, limit)
	}
	s.taken[k][cost.Of] += cost.N
	return nil
}

func (s *Spending) exceeded(quota string, used, limit int64) error {
	resets := startOf(s.day + 1)
	return &ExceededError{Quota: quota, Used: used, Limit: limit, Resets: resets,
		After: max(resets.Sub(s.c.now()), time.Second)}
}

// TakeMessage counts a message of size bytes for the caller and the caller's address, or refuses
// it. It also refuses the message if its convo, by this node's counts, has no quota left. The
// message is not judged yet: its sender may not be a member, and made-up convos must not take
// memory. If the sender is not a member, do not show the error to the sender, because it would
// reveal that the convo exists. A second call counts nothing, for example when a transaction is
// tried again.
//
// If this node does not know the convo yet, it reads the counts of other nodes at the next flush,
// and not before.
func (s *Spending) TakeMessage(convo uuid.UUID, size int) error {
	if s == nil || !s.c.limited || s.message {
		return nil
	}
	if err := s.Take(Cost{Messages, 1}, Cost{Bytes, int64(size)}); err != nil {
		return err
	}
	if s.c.limits[convoSubject][Bytes] != 0 {
		s.accounts[convoSubject] = s.c.find(subject{convoSubject, string(convo[:]), s.day})
	}
	cost := Cost{Bytes, int64(size)}
	if err := s.take(convoSubject, cost); err != nil {
		s.Return()
		return err
	}
	s.give(convoSubject, cost) // a non-member's message must not use the members' quota even for a moment
	s.message = true
	return nil
}

// StoredMessage counts a message for its convo, after TakeMessage has counted it and the message
// was stored. Messages that are stored at the same time can exceed the convo's quota by their
// sizes.
func (s *Spending) StoredMessage(convo uuid.UUID, size int) {
	if s == nil || !s.message {
		return
	}
	s.seeConvo(convo)
	s.count(convoSubject, Cost{Bytes, int64(size)})
}

// CountCommit counts what a commit stores in its convo. It refuses nothing, because members must be
// able to remove the person who used up the convo's quota.
func (s *Spending) CountCommit(convo uuid.UUID, size int64) {
	if s == nil {
		return
	}
	s.seeConvo(convo)
	s.count(convoSubject, Cost{Bytes, size})
}

// seeConvo finds or makes the convo's account. The account stays nil if there is no memory for
// another account. Then the convo is not counted.
func (s *Spending) seeConvo(convo uuid.UUID) {
	if s.c.limits[convoSubject][Bytes] == 0 || s.accounts[convoSubject] != nil {
		return
	}
	who := subject{convoSubject, string(convo[:]), s.day}
	a := s.c.find(who)
	if a == nil {
		a = &account{}
		a.active.Store(true)
		a = s.c.keep(s, who, a)
	}
	s.accounts[convoSubject] = a
}

// Count counts more bytes or rows that the request stores, even above the limit, because their
// number was not known before.
func (s *Spending) Count(cost Cost) {
	if s != nil {
		s.count(didSubject, cost)
		s.count(addressSubject, cost)
	}
}

func (s *Spending) count(k subjectKind, cost Cost) {
	if a := s.accounts[k]; a != nil && s.c.limits[k][cost.Of] != 0 && cost.N != 0 {
		a.count(cost.Of, cost.N, s.now)
		s.taken[k][cost.Of] += cost.N
	}
}

// Give returns a part of what was taken, for the caller and the caller's address.
func (s *Spending) Give(cost Cost) {
	if s != nil {
		s.give(didSubject, cost)
		s.give(addressSubject, cost)
	}
}

func (s *Spending) give(k subjectKind, cost Cost) {
	n := min(cost.N, s.taken[k][cost.Of])
	if n == 0 {
		return
	}
	s.accounts[k].count(cost.Of, -n, s.now)
	s.taken[k][cost.Of] -= n
}

// Return returns everything that was taken, because the request has stored nothing.
func (s *Spending) Return() {
	if s == nil {
		return
	}
	s.message = false
	for k := range s.taken {
		for r, n := range s.taken[k] {
			if n != 0 {
				s.give(subjectKind(k), Cost{Resource(r), n})
			}
		}
	}
}

// Invitations returns the bounds of the caller's invitations.
func (s *Spending) Invitations() Invitations {
	if s == nil {
		return Invitations{}
	}
	i := s.c.invitations
	i.Address = s.address
	return i
}

// ReportBytes is how many bytes of reports can be open, for all callers together. 0 means any
// number.
func (s *Spending) ReportBytes() int64 {
	if s == nil {
		return 0
	}
	return s.c.reports
}
