package history

import (
	"fmt"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// Observer records the events of one subscriber over all its connections. It checks each event when
// it comes: cursors increase, events of a convo come only to members, and a convo's log has no gap.
// In the end, Missing and Judge compare the events with a History. It is safe for concurrent use.
type Observer struct {
	who     string
	did     syntax.DID
	devices []string // devices whose Welcomes and KeyPackages may be reported

	mu          sync.Mutex // guards the fields below
	cursor      int64      // cursor of the last event
	last        xrpc.Event // the last event, without its body
	resumedFrom int64      // the cursor that this connection began from
	inclusive   bool       // this connection begins with an event that came before
	fresh       bool       // this connection has had no event yet
	readAgain   bool       // the subscriber has read its convos again; the stream can begin within a membership
	convos      map[string]*observedConvo
	personal    []xrpc.Event // Welcomes, invitations, KeyPackages
	events      int64        // number of events, without repeated ones
	entries     int64        // number of log entries among the events
	found       []Violation
}

// observedConvo is what a subscriber saw of one convo.
type observedConvo struct {
	memberships []observedMembership
}

// observedMembership is what a subscriber saw of one convo between joining and leaving.
type observedMembership struct {
	from    int64 // seq in the event of joining
	digests []EntryDigest
	changes []rosterChange
	gone    bool
	assumed bool // the subscriber began as a member; earlier events are unknown
	read    bool // the subscriber has read the log up to from: events up to there are not new
}

// next returns the seq of the next expected entry.
func (s *observedMembership) next() int64 { return s.from + 1 + int64(len(s.digests)) }

// NewObserver returns an observer that has seen no event.
func NewObserver(who string, did syntax.DID, devices ...string) *Observer {
	return &Observer{who: who, did: did, devices: devices, convos: map[string]*observedConvo{}}
}

// ReadAgain says that the subscriber got OutdatedCursor, and has read the logs of its convos up to
// these seqs. The observer forgets earlier events, because the server may have lost them.
func (v *Observer) ReadAgain(read map[string]int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cursor, v.last, v.fresh, v.readAgain, v.convos = 0, xrpc.Event{}, false, true, map[string]*observedConvo{}
	for convo, seq := range read {
		v.convos[convo] = &observedConvo{memberships: []observedMembership{{from: seq, assumed: true, read: true}}}
	}
}

func (v *Observer) report(kind ViolationKind, convo, format string, args ...any) {
	const most = 50
	if len(v.found) < most {
		v.found = append(v.found,
			Violation{Kind: kind, Convo: convo, Who: v.who, What: "the stream: " + fmt.Sprintf(format, args...)})
	}
}

// Resume returns the cursor to resume from. ok is false if no event has come yet. With again, the
// cursor asks for the last event once more, as from a client that is unsure whether it handled the
// event.
func (v *Observer) Resume(again bool) (cursor int64, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh, v.inclusive, v.resumedFrom = true, false, 0
	if v.cursor == 0 {
		return 0, v.readAgain // 0 asks for all events that are kept
	}
	v.inclusive, v.resumedFrom = again, v.cursor
	if !again {
		v.resumedFrom++
	}
	return v.resumedFrom, true
}

// Position returns the position of the last event, or "" if it came without one.
func (v *Observer) Position() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last.Position
}

// Observe takes the next event of the present connection, and reports whether it is new.
func (v *Observer) Observe(h xrpc.Event) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h.Kind == xrpc.EventInfo {
		v.report(Broken, "", "%s, and nothing is too old", h.Name)
		return false
	}
	fresh := v.fresh
	v.fresh = false
	if fresh && v.inclusive {
		if h.Cursor == v.cursor {
			if !sameEvent(&h, &v.last) {
				v.report(Broken, h.Convo, "cursor %d was a %s and is a %s, or another one", h.Cursor, v.last.Kind, h.Kind)
			}
			return false
		}
		v.report(Lost, v.last.Convo, "asked from cursor %d on, it begins with %d", v.resumedFrom, h.Cursor)
	}
	if h.Cursor <= v.cursor {
		v.report(Duplicated, h.Convo, "cursor %d (%s) comes after %d", h.Cursor, h.Kind, v.cursor)
		return false
	}
	v.cursor, v.last = h.Cursor, h
	v.last.Body = nil
	v.events++
	switch h.Kind {
	case xrpc.EventMessage, xrpc.EventCommit, xrpc.EventReset:
		v.observeEntry(&h)
	case xrpc.EventMembership:
		v.observeRosterChange(&h)
	case xrpc.EventDispute:
		if v.current(h.Convo) == nil {
			v.report(Broken, h.Convo, "the dispute %s comes to one who is not in the convo", h.Change)
		}
	case xrpc.EventRole, xrpc.EventMetadata:
		if v.current(h.Convo) == nil {
			v.report(Broken, h.Convo, "a %s event comes to one who is not in the convo", h.Kind)
		}
	case xrpc.EventArrival:
		if v.convos[h.Convo] == nil {
			v.report(Broken, h.Convo, "an arrival of %s in a convo that the subscriber has not been in", h.DID)
		}
	default:
		v.observePersonal(&h)
	}
	return true
}

// sameEvent compares an event with the earlier event at its cursor. The body of the earlier event
// was not kept.
func sameEvent(a, b *xrpc.Event) bool {
	return a.Kind == b.Kind && a.Convo == b.Convo && a.Seq == b.Seq && a.ID == b.ID && a.Sender == b.Sender &&
		a.Epoch == b.Epoch &&
		a.DID == b.DID && a.Change == b.Change && a.Device == b.Device && a.Ref == b.Ref && a.Created == b.Created
}

// current returns the membership that has not ended, or nil.
func (v *Observer) current(convo string) *observedMembership {
	a := v.convos[convo]
	if a == nil || len(a.memberships) == 0 || a.memberships[len(a.memberships)-1].gone {
		return nil
	}
	return &a.memberships[len(a.memberships)-1]
}

func (v *Observer) observeEntry(h *xrpc.Event) {
	s := v.current(h.Convo)
	switch {
	case s == nil && v.readAgain, s != nil && s.read && h.Seq <= s.from:
		return
	case s == nil:
		v.report(Broken, h.Convo, "the %s at seq %d comes to one who is not in the convo", h.Kind, h.Seq)
		return
	}
	v.entries++
	want := s.next()
	switch {
	case h.Seq <= s.from:
		v.report(Broken, h.Convo, "the %s at seq %d is from before it joined, at %d", h.Kind, h.Seq, s.from)
		return
	case h.Seq < want:
		v.report(Duplicated, h.Convo, "seq %d comes after %d", h.Seq, want-1)
		return
	case h.Seq > want:
		v.report(Lost, h.Convo, "seq %d comes after %d", h.Seq, want-1)
		for ; want < h.Seq; want++ {
			s.digests = append(s.digests, 0)
		}
	}
	s.digests = append(s.digests, eventDigest(h))
}

func (v *Observer) observeRosterChange(h *xrpc.Event) {
	s := v.current(h.Convo)
	own := syntax.DID(h.DID) == v.did
	if s != nil && s.read && (h.Seq < s.from || h.Seq == s.from && h.Change == mlsapi.MembershipEventChangeJoined) {
		return
	}
	t := rosterChange{did: syntax.DID(h.DID), change: h.Change, by: syntax.DID(h.By), seq: h.Seq}
	switch {
	case own && h.Change == mlsapi.MembershipEventChangeJoined && s != nil:
		v.report(Duplicated, h.Convo, "it joins, and is in the convo")
	case own && h.Change == mlsapi.MembershipEventChangeJoined:
		a := v.convos[h.Convo]
		if a == nil {
			a = &observedConvo{}
			v.convos[h.Convo] = a
		}
		a.memberships = append(a.memberships, observedMembership{from: h.Seq, changes: []rosterChange{t}})
	case s == nil && v.readAgain:
	case s == nil:
		v.report(Broken, h.Convo, "that %s %s comes to one who is not in the convo", h.DID, h.Change)
	default:
		s.changes = append(s.changes, t)
		if end := s.next() - 1; end != h.Seq {
			v.report(Lost, h.Convo, "%s %s when the log ended at seq %d, and seq %d was the last it saw", h.DID, h.Change, h.Seq,
				end)
		}
		s.gone = own
	}
}

func (v *Observer) observePersonal(h *xrpc.Event) {
	if !slices.Contains(v.devices, h.Device) {
		v.report(Broken, h.Convo, "a %s event of another account's device %s", h.Kind, h.Device)
	}
	v.personal = append(v.personal, *h)
}

// Count returns the number of events, and of log entries among them.
func (v *Observer) Count() (events, entries int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.events, v.entries
}

// Missing counts the events that have not arrived yet. When it returns 0, Judge may be called.
func (v *Observer) Missing(c *History) (n int64) {
	convos, personal := c.convosOf(v.did), c.personalOf(v.did)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range convos {
		n += v.missingOf(c, s)
	}
	return n + int64(len(without(personal, v.personalEvents())))
}

func (v *Observer) personalEvents() (all []personalEvent) {
	for _, h := range v.personal {
		all = append(all, personalEventOf(&h))
	}
	return all
}

// without returns a without the elements of b. An element that is twice in b is removed twice.
func without(a, b []personalEvent) []personalEvent {
	a = slices.Clone(a)
	for _, o := range b {
		if i := slices.Index(a, o); i >= 0 {
			a = slices.Delete(a, i, i+1)
		}
	}
	return a
}

func (v *Observer) missingOf(c *History, s *convoHistory) (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := v.memberships(s.id)
	for i, p := range s.memberships[v.did] {
		if i >= len(seen) {
			n += s.end(p) - p.from + 1
			continue
		}
		st := &seen[i]
		n += max(0, s.end(p)-st.next()+1)
		got, want := s.compare(p, st)
		n += int64(max(0, len(want)-len(got)))
	}
	return n
}

func (v *Observer) memberships(convo string) []observedMembership {
	if a := v.convos[convo]; a != nil {
		return a.memberships
	}
	return nil
}

// withoutStep returns a change as an event shows it.
func withoutStep(t rosterChange) rosterChange {
	t.step = 0
	return t
}

// Judge returns the violations found so far, and every difference from the history. The history
// must be complete.
func (v *Observer) Judge(c *History) []Violation {
	convos, personal := c.convosOf(v.did), c.personalOf(v.did)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range convos {
		v.judge(s)
	}
	for convo := range v.convos {
		if !slices.ContainsFunc(convos, func(s *convoHistory) bool { return s.id == convo }) {
			v.report(Broken, convo, "it was never in this convo, or did not ask for it")
		}
	}
	v.judgePersonal(personal)
	found := v.found
	v.found = nil
	return found
}

// judgePersonal checks that every Welcome and every invitation is reported once. Only the server
// knows exactly when KeyPackages run low, so more such events than expected are allowed.
func (v *Observer) judgePersonal(want []personalEvent) {
	got := v.personalEvents()
	for _, o := range without(want, got) {
		v.report(Lost, o.convo, "an event %s did not come: device %s, epoch %d, %s", o.kind, o.device, o.epoch, o.change)
	}
	for _, o := range without(got, want) {
		if o.kind != xrpc.EventKeyPackages {
			v.report(Duplicated, o.convo, "an event %s of device %s into epoch %d came once too often", o.kind, o.device,
				o.epoch)
		}
	}
}

func (v *Observer) judge(s *convoHistory) {
	want, seen := s.memberships[v.did], v.memberships(s.id)
	for i, p := range want {
		if i >= len(seen) {
			v.report(Lost, s.id, "it joined at seq %d, %d times in all, and saw %d", p.from, len(want), len(seen))
			return
		}
		v.judgeMembership(s, p, &seen[i])
	}
	if len(seen) > len(want) {
		v.report(Broken, s.id, "it joined %d times, and saw %d", len(want), len(seen))
	}
}

func (v *Observer) judgeMembership(s *convoHistory, p membership, st *observedMembership) {
	end := s.end(p)
	if st.from != p.from && !st.assumed {
		v.report(Broken, s.id, "it joined at seq %d, and the event said %d", p.from, st.from)
	}
	if last := st.next() - 1; last < end {
		v.report(Lost, s.id, "its log ends at seq %d, and it saw up to %d", end, last)
	} else if last > end {
		v.report(Broken, s.id, "its log ends at seq %d, and it saw up to %d", end, last)
	}
	for i, m := range st.digests {
		seq := st.from + 1 + int64(i)
		if m == 0 || seq > int64(len(s.log)) {
			continue // reported before
		}
		if want := s.log[seq-1]; want == 0 {
			v.report(Broken, s.id, "seq %d holds an entry that was never acknowledged", seq)
		} else if m != want {
			v.report(Broken, s.id, "seq %d is not what was written there", seq)
		}
	}
	if p.closed != st.gone {
		v.report(Lost, s.id, "it did not see that it left at seq %d", p.to)
	}
	v.judgeRoster(s, p, st)
}

// compare returns the roster changes that were seen, and the changes that had to be seen. If a
// membership is assumed, its first changes are unknown.
func (s *convoHistory) compare(p membership, st *observedMembership) (got, want []rosterChange) {
	own := s.roster[p.first]
	begin, end := p.first, p.first // the changes of the same write
	for begin > 0 && s.roster[begin-1].step == own.step {
		begin--
	}
	for end < len(s.roster) && s.roster[end].step == own.step {
		end++
	}
	for _, t := range st.changes {
		if t != withoutStep(own) &&
			slices.ContainsFunc(s.roster[begin:end], func(r rosterChange) bool { return withoutStep(r) == t }) {
			continue
		}
		got = append(got, t)
	}
	for _, t := range s.changes(p) {
		want = append(want, withoutStep(t))
	}
	if st.assumed {
		want = want[max(0, len(want)-len(got)):]
	}
	return got, want
}

func (v *Observer) judgeRoster(s *convoHistory, p membership, st *observedMembership) {
	got, want := s.compare(p, st)
	if !slices.Equal(got, want) {
		kind := Broken
		if len(got) < len(want) {
			kind = Lost
		} else if len(got) > len(want) {
			kind = Duplicated
		}
		v.report(kind, s.id, "the roster changed %d times, and it saw %d: %v, want %v", len(want), len(got), describe(got),
			describe(want))
	}
}

func describe(turns []rosterChange) (out []string) {
	for _, t := range turns {
		out = append(out, fmt.Sprintf("%s %s by %s at %d", t.did, t.change, t.by, t.seq))
	}
	return out
}
