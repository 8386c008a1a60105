package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events/signals"
	"mlsd/messages"
	"mlsd/outbox"
)

//	outbox ──Sequencer──▶ events ──Hub──▶ Subscriptions
//	                         └──catchUp──▶─────┘
//
// One node at a time leads. Its Sequencer moves committed rows from the outbox into the table
// events, and gives each row a place in the stream: stream_seq 1, 2, 3 …. The Hub of every node
// reads the end of that table once for all its subscriptions. A Subscription that is behind reads
// the table itself (catchUp) until it is live. A live Subscription gets its events from the Hub. No
// event is missed or repeated at this change.

// Errors that end a subscription, or keep it from beginning.
var (
	ErrConsumerTooSlow = errors.New("the events come faster than they are read; connect again at the last cursor")
	ErrTooMany         = errors.New("there are too many subscriptions; close one, then connect again")
	ErrReplaced        = errors.New("a newer subscription has taken its place")
	ErrClosing         = errors.New("the node shuts down, or the database has another primary; connect again")
)

// Event is an event at its place in the stream. Subscriptions share an Event, so nobody may change
// it.
type Event struct {
	StreamSeq int64 // the event's place in the stream
	Kind      outbox.Kind
	ConvoID   uuid.UUID  // zero if the event concerns no convo
	Seq       int64      // seq of the event's log entry; for other kinds, of the convo's newest log entry at that time
	DID       syntax.DID // the person whom the event concerns; "" for a log entry
	Size      int        // bytes of the log entry's body
	Detail    outbox.Detail
	At        time.Time

	// Signal is set in an event that has no place in the stream and is not kept. In such an event,
	// all other fields except ConvoID and Size are zero.
	Signal *signals.Signal

	day     time.Time  // the event's partition
	of      generation // generation in which the event got its place
	entry   atomic.Pointer[messages.Message]
	loading sync.Mutex // held while entry is loaded

	encoded [encodings]struct {
		once sync.Once
		wire []byte
	}
}

// withoutEntry returns a copy of e without the log entry.
func (e *Event) withoutEntry() *Event {
	return &Event{
		StreamSeq: e.StreamSeq, Kind: e.Kind, ConvoID: e.ConvoID, Seq: e.Seq, DID: e.DID, Size: e.Size, Detail: e.Detail,
		At: e.At, day: e.day, of: e.of,
	}
}

// Message returns the log entry of the event, or nil if its kind has none. The log entry is loaded
// once Next has returned the event.
func (e *Event) Message() *messages.Message { return e.entry.Load() }

// Number is the event's cursor as an integer. Numbers ascend even across generations.
func (e *Event) Number() int64 { return e.of.number(e.StreamSeq) }

// Position is the event's cursor as a text.
func (e *Event) Position() string { return e.of.position(e.StreamSeq) }

// Form is an encoding of events.
type Form int

// The encodings of events.
const (
	Frame             Form = iota // for subscribeConvoEvents
	ServerSent                    // for streamConvoEvents
	RequestFrame                  // for subscribeConvoEvents, to a person whose membership is a request
	RequestServerSent             // for streamConvoEvents, to such a person
	encodings                     // number of encodings
)

// Encoded returns the event as encoded by encode. It calls encode once for each form, however many
// subscriptions share the event.
func (e *Event) Encoded(form Form, encode func(*Event) []byte) []byte {
	f := &e.encoded[form]
	f.once.Do(func() { f.wire = encode(e) })
	return f.wire
}

// overhead is the approximate memory of an event without its log entry, in bytes.
const overhead = 512

// cost is the memory that the event takes in a buffer, in bytes.
func (e *Event) cost() int { return overhead + e.Size }

// ofConvo reports whether the event is for the members of a convo. Other events are for one person.
func (e *Event) ofConvo() bool {
	switch e.Kind {
	case outbox.Membership, outbox.Dispute, outbox.Reset, outbox.Role, outbox.Metadata:
		return true
	}
	return e.Kind.LogEntry()
}

// queueRows adds to a batch the statement that reads the next rows after a place, at most limit of
// them. day is the partition of the place. The batch sets *found to the events after the place.
func (g generations) queueRows(batch *pgx.Batch, place int64, day time.Time, limit int, found *[]*Event) {
	batch.Queue(`
		SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at, convo_ids, seqs, sizes FROM events
		WHERE stream_seq > $1 AND day >= $2
		ORDER BY stream_seq LIMIT $3`, place, day, limit).Query(func(rows pgx.Rows) error {
		shared, err := pgx.CollectRows(rows, g.scanShared)
		*found = since(slices.Concat(shared...), place)
		return err
	})
}

// scanShared reads the columns that scan reads. It also reads convo_ids, seqs and sizes, which
// replace convo_id, seq and size in a row for several messages.
func (g generations) scanShared(row pgx.CollectableRow) ([]*Event, error) {
	var (
		convos []uuid.UUID
		seqs   []int64
		sizes  []int32
	)
	last, err := g.scan(row, &convos, &seqs, &sizes)
	if err != nil || seqs == nil {
		return []*Event{last}, err
	}
	if len(convos) != len(seqs) || len(sizes) != len(seqs) {
		return nil, fmt.Errorf("event %d: %d convos, %d seqs, %d sizes", last.StreamSeq, len(convos), len(seqs), len(sizes))
	}
	all := make([]*Event, len(seqs))
	for i := range seqs {
		all[i] = &Event{
			StreamSeq: last.StreamSeq - int64(len(seqs)-1-i), Kind: last.Kind, ConvoID: convos[i], Seq: seqs[i],
			Size: int(sizes[i]),
			At:   last.At, day: last.day, of: last.of,
		}
	}
	return all, nil
}

// scan reads the columns stream_seq, day, kind, convo_id, seq, did, size, detail and created_at,
// and then more.
func (g generations) scan(row pgx.CollectableRow, more ...any) (*Event, error) {
	e := new(Event)
	var (
		kind   int16
		convo  *uuid.UUID
		seq    *int64
		did    *syntax.DID
		detail []byte
	)
	columns := append([]any{&e.StreamSeq, &e.day, &kind, &convo, &seq, &did, &e.Size, &detail, &e.At}, more...)
	if err := row.Scan(columns...); err != nil {
		return nil, err
	}
	e.Kind, e.of = outbox.Kind(kind), g.of(e.StreamSeq)
	if convo != nil {
		e.ConvoID = *convo
	}
	if seq != nil {
		e.Seq = *seq
	}
	if did != nil {
		e.DID = *did
	}
	if detail != nil {
		if err := json.Unmarshal(detail, &e.Detail); err != nil {
			return nil, fmt.Errorf("event %d: %w", e.StreamSeq, err)
		}
	}
	return e, nil
}

// loadEntries reads the log entries of events that lack them. An expired log entry stays nil.
func loadEntries(ctx context.Context, db *pgxpool.Pool, events []*Event) error {
	refs := make([]messages.Ref, 0, len(events))
	for _, e := range events {
		if e.Message() == nil {
			refs = append(refs, messages.Ref{ConvoID: e.ConvoID, Seq: e.Seq})
		}
	}
	if len(refs) == 0 {
		return nil
	}
	found, err := messages.Load(ctx, db, refs)
	if err != nil {
		return err
	}
	for _, e := range events {
		if m := found[messages.Ref{ConvoID: e.ConvoID, Seq: e.Seq}]; m != nil {
			e.entry.Store(m)
		}
	}
	return nil
}

// Request says which events a subscription gets.
type Request struct {
	DID syntax.DID
	// DeviceID is the device that gets no pushes while the subscription is live. It is "" if the
	// client names no device, or if a dead connection could stay unnoticed for longer than
	// outbox.DetectWithin.
	DeviceID string
	Cursor   *Cursor     // the subscription begins after this cursor; nil means only events from now on
	Convos   []uuid.UUID // if not nil, only events that concern these convos
}

// Metrics measures the stream. Methods are safe for concurrent use.
type Metrics interface {
	Leading(leads bool)                         // whether this node leads the sequencer
	Sequenced(events int, oldest time.Duration) // events of one step, and how long the first event waited
	Published(events int, lag time.Duration)    // events of one round, and the age of the newest event
	CatchUp(events int)                         // events of one page that a subscription read by itself
	FellBehind()                                // a subscription's buffer was full
}
