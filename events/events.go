// Package events tells whoever listens what happened: every event that was committed, in one order, to everybody it concerns.
//
//	outbox ──sequencer──▶ events ──tail──▶ hub ──▶ subscriptions
//	                         └───────catch-up────────▲
//
// One node at a time, the leader, moves what is committed from the outbox into the table events, where it gets its place in the
// stream: stream_seq 1, 2, 3 …. Every node reads the end of that table once and hands each event to those of its subscriptions that
// it concerns. A subscription that is behind reads the table itself until it has caught up, and then goes on with what its node
// hands it; at the seam nothing is missed and nothing comes twice.
//
// Who is entitled to an event of a convo is a matter of the stream alone: whoever's last membership event before it says that it
// joined. The roster is only asked for people whose membership has not changed since.
package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/messages"
	"mlsd/outbox"
)

// Errors that end a subscription, or keep it from beginning.
var (
	ErrFutureCursor    = errors.New("the cursor is ahead of the stream")
	ErrConsumerTooSlow = errors.New("the events come faster than they are read")
	ErrTooMany         = errors.New("there are too many subscriptions")
	ErrClosing         = errors.New("the node is shutting down")
)

// Event is something that happened, at its place in the stream. Several subscriptions share one: it is not to be changed.
type Event struct {
	StreamSeq int64 // its place; also its cursor
	Kind      outbox.Kind
	ConvoID   uuid.UUID  // zero: it concerns no convo
	Seq       int64      // of the log entry, or of the convo's newest one then
	DID       syntax.DID // whom it concerns, if that is one person
	Size      int        // bytes of the log entry's body
	Detail    outbox.Detail
	At        time.Time

	day     time.Time // its partition
	entry   atomic.Pointer[messages.Message]
	loading sync.Mutex // of entry

	encoded [forms]struct {
		once sync.Once
		wire []byte
	}
}

// bare is a copy without the log entry.
func (e *Event) bare() *Event {
	return &Event{
		StreamSeq: e.StreamSeq, Kind: e.Kind, ConvoID: e.ConvoID, Seq: e.Seq, DID: e.DID, Size: e.Size, Detail: e.Detail, At: e.At, day: e.day,
	}
}

// Message returns the log entry that the event tells of; nil if it tells of none. It is there once Next has returned the event.
func (e *Event) Message() *messages.Message { return e.entry.Load() }

// Form is an encoding of events.
type Form int

// The forms that events are sent in.
const (
	Frame      Form = iota // of subscribeConvoEvents
	ServerSent             // of streamConvoEvents
	forms
)

// Encoded returns the event as encode makes it, which is called once for each form, however many subscriptions share the event.
func (e *Event) Encoded(form Form, encode func(*Event) []byte) []byte {
	f := &e.encoded[form]
	f.once.Do(func() { f.wire = encode(e) })
	return f.wire
}

// overhead is what an event costs in memory besides its log entry, in bytes, about.
const overhead = 512

// cost is what the event may cost a buffer, in bytes.
func (e *Event) cost() int { return overhead + e.Size }

// ofConvo reports whether the event is for a convo's members. The others are for one person.
func (e *Event) ofConvo() bool { return e.Kind.LogEntry() || e.Kind == outbox.Membership }

// columns are what scan reads.
const columns = `stream_seq, day, kind, convo_id, seq, did, size, detail, created_at`

func scan(row pgx.CollectableRow) (*Event, error) {
	e := new(Event)
	var (
		kind   int16
		convo  *uuid.UUID
		seq    *int64
		did    *syntax.DID
		detail []byte
	)
	if err := row.Scan(&e.StreamSeq, &e.day, &kind, &convo, &seq, &did, &e.Size, &detail, &e.At); err != nil {
		return nil, err
	}
	e.Kind = outbox.Kind(kind)
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

// Request says what a subscription is to be told.
type Request struct {
	DID      syntax.DID
	DeviceID string      // whose pushes are held back while it is told everything as it happens; "" if it names none, or could be dead for long
	Cursor   *int64      // the first event that is wanted; nil: what happens from now on; 0: all that is kept
	Convos   []uuid.UUID // if not nil, only what concerns these
}

// Metrics is told how the stream goes. Methods are safe for concurrent use.
type Metrics interface {
	Leading(leads bool)                         // whether this node's sequencer leads
	Sequenced(events int, oldest time.Duration) // moved at once, and how long the first of them had waited
	Told(events int, lag time.Duration)         // to this node's hub, and how long ago the newest of them happened
	CatchUp(events int)                         // one page that a subscription read by itself
	FellBehind()                                // a subscription's buffer is full
}
