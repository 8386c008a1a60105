package events

import (
	"cmp"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

const (
	keepEvents = 1 << 15        // newest events that a hub always remembers
	maxEvents  = 4 * keepEvents // limit if more than keepEvents events are not indexed
)

// memory is the newest events of the stream, with no gap.
type memory struct {
	events  []*Event
	ofConvo map[uuid.UUID][]*Event  // events for the members of a convo
	ofDID   map[syntax.DID][]*Event // events for one person
}

func (m *memory) add(e *Event) {
	m.events = append(m.events, e)
	m.group(e)
}

// group adds e to the events of its convo or person.
func (m *memory) group(e *Event) {
	if m.ofConvo == nil {
		m.ofConvo, m.ofDID = map[uuid.UUID][]*Event{}, map[syntax.DID][]*Event{}
	}
	if e.ofConvo() {
		m.ofConvo[e.ConvoID] = append(m.ofConvo[e.ConvoID], e)
	} else {
		m.ofDID[e.DID] = append(m.ofDID[e.DID], e)
	}
}

// forget forgets all events except the newest keepEvents and the events after the place indexed. It
// keeps at most maxEvents. It does nothing until there are more than twice as many events as it
// would keep, so that it seldom copies them.
func (m *memory) forget(indexed int64) {
	keep := keepEvents
	if n := len(m.events); n > 0 {
		keep = int(min(max(keepEvents, m.events[n-1].StreamSeq-indexed), maxEvents))
	}
	if len(m.events) <= 2*keep {
		return
	}
	m.events = slices.Clone(m.events[len(m.events)-keep:])
	m.ofConvo, m.ofDID = nil, nil
	for _, e := range m.events {
		m.group(e)
	}
}

// after returns the events after the given place.
func (m *memory) after(place int64) []*Event { return since(m.events, place) }

// since returns the part of events after the given place.
func since(events []*Event, place int64) []*Event {
	i, _ := slices.BinarySearchFunc(events, place+1,
		func(e *Event, seq int64) int { return cmp.Compare(e.StreamSeq, seq) })
	return events[i:]
}

// find returns the first limit events of memberships and of a person, after the place from and up
// to the place upto.
func (m *memory) find(did syntax.DID, memberships []membership, from, upto int64, limit int) (found []*Event) {
	take := func(of []*Event, from, upto int64) {
		of = since(of, from)
		n := min(len(of)-len(since(of, upto)), limit)
		found = append(found, of[:n]...)
	}
	for _, one := range memberships {
		take(m.ofConvo[one.convo], max(one.from, from), min(one.to, upto))
	}
	take(m.ofDID[did], from, upto)
	slices.SortFunc(found, func(a, b *Event) int { return cmp.Compare(a.StreamSeq, b.StreamSeq) })
	return found[:min(len(found), limit)]
}
