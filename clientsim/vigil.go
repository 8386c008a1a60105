package clientsim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// Vigil is all that one subscriber is told, over all its connections, and judges it as it comes: the order of the cursors, that no
// convo's event comes to one who is not in it, and that the log of a convo comes densely. What it cannot know by itself, whether
// all was told and nothing else, is asked of the chronicle at the end (Missing, Judge). It is safe for concurrent use.
type Vigil struct {
	who     string
	did     syntax.DID
	devices []string // whose Welcomes and KeyPackages may be told of
	only    []string // if not nil, the convos that it asked for, and nothing else

	mu        sync.Mutex // guards what follows
	cursor    int64      // of the last event
	last      happening  // that event
	asked     int64      // the cursor of this connection
	inclusive bool       // it begins with an event that was told before
	fresh     bool       // this connection has told nothing yet
	convos    map[string]*attendance
	personal  []happening // Welcomes, KeyPackages
	told      int64       // events, without repeated ones
	entries   int64       // of logs
	found     []Violation
}

// attendance is what was told of a convo.
type attendance struct {
	seen []stay
}

// stay is what was told of a convo between joining and leaving.
type stay struct {
	from    int64 // as the joining said
	marks   []mark
	turns   []turn
	gone    bool
	assumed bool // it began as a member: what came before is not known
}

// next is the seq of the entry that comes next.
func (s *stay) next() int64 { return s.from + 1 + int64(len(s.marks)) }

// NewVigil returns that of a subscriber who was told nothing yet.
func NewVigil(who string, did syntax.DID, devices ...string) *Vigil {
	return &Vigil{who: who, did: did, devices: devices, convos: map[string]*attendance{}}
}

// Assume has a subscriber begin as a member of a convo whose log it knows up to seq.
func (v *Vigil) Assume(convo string, seq int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.convos[convo] = &attendance{seen: []stay{{from: seq, assumed: true}}}
}

// Devices says which devices the subscriber has by now.
func (v *Vigil) Devices(devices ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.devices = devices
}

func (v *Vigil) report(kind ViolationKind, convo, format string, args ...any) {
	const most = 50
	if len(v.found) < most {
		v.found = append(v.found, Violation{Kind: kind, Convo: convo, Who: v.who, What: "the stream: " + fmt.Sprintf(format, args...)})
	}
}

// Resume says where to go on: the cursor to ask for, unless nothing was told yet. again has the last event told again, which is
// what a client does that is not sure of it.
func (v *Vigil) Resume(again bool) (cursor int64, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh, v.inclusive, v.asked = true, false, 0
	if v.cursor == 0 {
		return 0, false
	}
	v.inclusive, v.asked = again, v.cursor
	if !again {
		v.asked++
	}
	return v.asked, true
}

// See takes the next event of the present connection, and reports whether it is a new one.
func (v *Vigil) See(h happening) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h.kind == toldInfo {
		v.report(Broken, "", "%s, and nothing is too old", h.name)
		return false
	}
	fresh := v.fresh
	v.fresh = false
	if fresh && v.inclusive {
		if h.cursor == v.cursor {
			if !sameTold(&h, &v.last) {
				v.report(Broken, h.convo, "cursor %d was a %s and is a %s, or another one", h.cursor, v.last.kind, h.kind)
			}
			return false
		}
		v.report(Lost, v.last.convo, "asked from cursor %d on, it begins with %d", v.asked, h.cursor)
	}
	if h.cursor <= v.cursor {
		v.report(Duplicated, h.convo, "cursor %d (%s) comes after %d", h.cursor, h.kind, v.cursor)
		return false
	}
	v.cursor, v.last = h.cursor, h
	v.last.body = nil
	v.told++
	switch h.kind {
	case toldMessage, toldCommit:
		v.entry(&h)
	case toldMembership:
		v.turn(&h)
	default:
		v.personally(&h)
	}
	return true
}

// sameTold compares an event with the one that was told before at its cursor, whose body was not kept.
func sameTold(a, b *happening) bool {
	return a.kind == b.kind && a.convo == b.convo && a.seq == b.seq && a.id == b.id && a.sender == b.sender && a.epoch == b.epoch &&
		a.did == b.did && a.change == b.change && a.device == b.device && a.ref == b.ref && a.created == b.created
}

// present is the stay that goes on in a convo, or nil.
func (v *Vigil) present(convo string) *stay {
	a := v.convos[convo]
	if a == nil || len(a.seen) == 0 || a.seen[len(a.seen)-1].gone {
		return nil
	}
	return &a.seen[len(a.seen)-1]
}

func (v *Vigil) entry(h *happening) {
	s := v.present(h.convo)
	if s == nil {
		v.report(Broken, h.convo, "the %s at seq %d comes to one who is not in the convo", h.kind, h.seq)
		return
	}
	v.entries++
	want := s.next()
	switch {
	case h.seq <= s.from:
		v.report(Broken, h.convo, "the %s at seq %d is from before it joined, at %d", h.kind, h.seq, s.from)
		return
	case h.seq < want:
		v.report(Duplicated, h.convo, "seq %d comes after %d", h.seq, want-1)
		return
	case h.seq > want:
		v.report(Lost, h.convo, "seq %d comes after %d", h.seq, want-1)
		for ; want < h.seq; want++ {
			s.marks = append(s.marks, 0)
		}
	}
	s.marks = append(s.marks, h.mark())
}

func (v *Vigil) turn(h *happening) {
	s := v.present(h.convo)
	own := syntax.DID(h.did) == v.did
	t := turn{did: syntax.DID(h.did), change: h.change, by: syntax.DID(h.by), seq: h.seq}
	switch {
	case own && h.change == mlsapi.MembershipEventChangeJoined && s != nil:
		v.report(Duplicated, h.convo, "it joins, and is in the convo")
	case own && h.change == mlsapi.MembershipEventChangeJoined:
		a := v.convos[h.convo]
		if a == nil {
			a = &attendance{}
			v.convos[h.convo] = a
		}
		a.seen = append(a.seen, stay{from: h.seq, turns: []turn{t}})
	case s == nil:
		v.report(Broken, h.convo, "that %s %s comes to one who is not in the convo", h.did, h.change)
	default:
		s.turns = append(s.turns, t)
		if end := s.next() - 1; end != h.seq {
			v.report(Lost, h.convo, "%s %s when the log ended at seq %d, and seq %d was the last told", h.did, h.change, h.seq, end)
		}
		s.gone = own
	}
}

func (v *Vigil) personally(h *happening) {
	if !slices.Contains(v.devices, h.device) {
		v.report(Broken, h.convo, "a %s event of somebody else's device %s", h.kind, h.device)
	}
	v.personal = append(v.personal, *h)
}

// Cursor is that of the last event.
func (v *Vigil) Cursor() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cursor
}

// Told counts the events, and the log entries among them.
func (v *Vigil) Told() (events, entries int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.told, v.entries
}

// Personal are the events about the subscriber's devices.
func (v *Vigil) Personal() []happening {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.personal)
}

// Missing counts what happened and was not told yet: 0 once the vigil may be judged.
func (v *Vigil) Missing(c *Chronicle) (n int64) {
	stories, omens := v.meant(c)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range stories {
		n += v.missingOf(c, s)
	}
	return n + int64(len(less(omens, v.omens())))
}

// meant is what of the chronicle it has to be told.
func (v *Vigil) meant(c *Chronicle) ([]*story, []omen) {
	stories, omens := c.of(v.did), c.omensOf(v.did)
	if v.only == nil {
		return stories, omens
	}
	return slices.DeleteFunc(stories, func(s *story) bool { return !slices.Contains(v.only, s.id) }),
		slices.DeleteFunc(omens, func(o omen) bool { return !slices.Contains(v.only, o.convo) })
}

func (v *Vigil) omens() (all []omen) {
	for _, h := range v.personal {
		all = append(all, h.omen())
	}
	return all
}

// less is a without what is in b, each as often as it is there.
func less(a, b []omen) []omen {
	a = slices.Clone(a)
	for _, o := range b {
		if i := slices.Index(a, o); i >= 0 {
			a = slices.Delete(a, i, i+1)
		}
	}
	return a
}

func (v *Vigil) missingOf(c *Chronicle, s *story) (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stays := v.stays(s.id)
	for i, p := range s.tenures[v.did] {
		if i >= len(stays) {
			n += s.end(p) - p.from + 1
			continue
		}
		st := &stays[i]
		n += max(0, s.end(p)-st.next()+1)
		got, want := s.compare(p, st)
		n += int64(max(0, len(want)-len(got)))
	}
	return n
}

func (v *Vigil) stays(convo string) []stay {
	if a := v.convos[convo]; a != nil {
		return a.seen
	}
	return nil
}

// bare is a turn as an event tells it.
func bare(t turn) turn {
	t.step = 0
	return t
}

// Judge returns what was found on the way, and what differs from the chronicle, in which nothing happens any more.
func (v *Vigil) Judge(c *Chronicle) []Violation {
	stories, omens := v.meant(c)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range stories {
		v.judge(s)
	}
	for convo := range v.convos {
		if !slices.ContainsFunc(stories, func(s *story) bool { return s.id == convo }) {
			v.report(Broken, convo, "it was never in this convo, or did not ask for it")
		}
	}
	v.judgeOmens(omens)
	found := v.found
	v.found = nil
	return found
}

// judgeOmens: every Welcome is told once. When KeyPackages run low nobody knows as well as the server: more may be told than is known.
func (v *Vigil) judgeOmens(want []omen) {
	got := v.omens()
	for _, o := range less(want, got) {
		v.report(Lost, o.convo, "a %s event was not told: device %s, epoch %d, %s", o.kind, o.device, o.epoch, o.change)
	}
	for _, o := range less(got, want) {
		if o.kind == toldWelcome {
			v.report(Duplicated, o.convo, "a Welcome of device %s into epoch %d was told once too often", o.device, o.epoch)
		}
	}
}

func (v *Vigil) judge(s *story) {
	tenures, stays := s.tenures[v.did], v.stays(s.id)
	for i, p := range tenures {
		if i >= len(stays) {
			v.report(Lost, s.id, "it joined at seq %d, %d times in all, and was told %d times", p.from, len(tenures), len(stays))
			return
		}
		v.judgeStay(s, p, &stays[i])
	}
	if len(stays) > len(tenures) {
		v.report(Broken, s.id, "it joined %d times, and was told %d times", len(tenures), len(stays))
	}
}

func (v *Vigil) judgeStay(s *story, p tenure, st *stay) {
	end := s.end(p)
	if st.from != p.from && !st.assumed {
		v.report(Broken, s.id, "it joined at seq %d, and the event said %d", p.from, st.from)
	}
	if last := st.next() - 1; last < end {
		v.report(Lost, s.id, "the log goes to seq %d for it, and it was told up to %d", end, last)
	} else if last > end {
		v.report(Broken, s.id, "the log goes to seq %d for it, and it was told up to %d", end, last)
	}
	for i, m := range st.marks {
		seq := st.from + 1 + int64(i)
		if m == 0 || seq > int64(len(s.log)) {
			continue // said before
		}
		if want := s.log[seq-1]; want == 0 {
			v.report(Broken, s.id, "seq %d is what nobody was told to have written", seq)
		} else if m != want {
			v.report(Broken, s.id, "seq %d is not what was written there", seq)
		}
	}
	if p.closed != st.gone {
		v.report(Lost, s.id, "that it left at seq %d was not told", p.to)
	}
	v.judgeTurns(s, p, st)
}

// compare returns the changes of the roster that were told, and those that have to be. Of an assumed stay the beginning is not known.
func (s *story) compare(p tenure, st *stay) (got, want []turn) {
	own := s.roster[p.first]
	begin, end := p.first, p.first // of what the same write did
	for begin > 0 && s.roster[begin-1].step == own.step {
		begin--
	}
	for end < len(s.roster) && s.roster[end].step == own.step {
		end++
	}
	for _, t := range st.turns {
		if t != bare(own) && slices.ContainsFunc(s.roster[begin:end], func(r turn) bool { return bare(r) == t }) {
			continue
		}
		got = append(got, t)
	}
	for _, t := range s.turns(p) {
		want = append(want, bare(t))
	}
	if st.assumed {
		want = want[max(0, len(want)-len(got)):]
	}
	return got, want
}

func (v *Vigil) judgeTurns(s *story, p tenure, st *stay) {
	got, want := s.compare(p, st)
	if !slices.Equal(got, want) {
		kind := Broken
		if len(got) < len(want) {
			kind = Lost
		} else if len(got) > len(want) {
			kind = Duplicated
		}
		v.report(kind, s.id, "the roster changed %d times, and it was told of %d: %v, want %v", len(want), len(got), brief(got), brief(want))
	}
}

func brief(turns []turn) (out []string) {
	for _, t := range turns {
		out = append(out, fmt.Sprintf("%s %s by %s at %d", t.did, t.change, t.by, t.seq))
	}
	return out
}
