package events

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

const (
	tailLimit  = 1000           // rows of one read; also events that are handed out at a time
	keepEvents = 1 << 15        // newest events that a hub always remembers
	maxEvents  = 4 * keepEvents // limit if more than keepEvents events are not indexed
)

// errNotThere says that partitions were dropped before the reader had read them, or that the stream
// has gone back.
var errNotThere = errors.New("the events that come next are not there any more")

// tail is the end of the stream, as a hub has read it.
type tail struct {
	of      generations // generations up to the one that is read
	head    int64       // place of the newest event
	day     time.Time   // partition of the newest event
	indexed int64       // convo_events has the messages up to this place
	memory  memory      // events up to head; at least those that are not indexed
}

// remember reads the events of a stream that are not indexed, up to the end of the stream. Error:
// errNotThere.
func remember(ctx context.Context, db *pgxpool.Pool, s stream) (tail, error) {
	t := tail{of: s.of, head: s.head, day: s.day, indexed: s.indexed}
	if from := max(s.indexed, s.head-maxEvents, s.first-1); from < s.head {
		t.head, t.day = from, time.Time{}
	}
	for t.head < s.head {
		batch, now, err := t.next(ctx, db)
		switch {
		case err != nil:
			return tail{}, err
		case len(batch) == 0, now.generation != s.of.newest().id:
			return tail{}, errNotThere
		}
		for _, e := range batch {
			t.memory.add(e)
			t.head, t.day = e.StreamSeq, e.day
		}
	}
	return t, nil
}

// ends is the state of the stream after a read.
type ends struct{ generation, head, indexed int64 }

// next reads the events of the next rows, at most tailLimit rows.
func (t *tail) next(ctx context.Context, db *pgxpool.Pool) (batch []*Event, now ends, err error) {
	both := &pgx.Batch{}
	t.of.queueRows(both, t.head, t.day, tailLimit, &batch)
	// This query runs after the query of the events, because the generation of an event is recorded
	// before the event. The newest event is where the stream ends. The row of the table stream also
	// says so, but that row has a version for each step, and PostgreSQL keeps all versions while a
	// snapshot is open.
	both.Queue(`
		SELECT (SELECT max(id) FROM generations), coalesce((SELECT max(stream_seq) FROM events), 0), (SELECT last FROM
			convo_events_end)`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&now.generation, &now.head, &now.indexed) })
	err = db.SendBatch(ctx, both).Close()
	return batch, now, errs.Wrap(err, "read the end of the stream")
}

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

// membership is a part of the stream in which the DID is entitled to a convo's events:
// from < stream_seq ≤ to.
type membership struct {
	convo    uuid.UUID
	from, to int64
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
