// Package events tells whoever listens what happened: every event that was committed, in one order, to everybody it concerns.
//
//	outbox ──sequencer──▶ events ──tail──▶ hub ──▶ subscriptions
//	                         └───────catch-up────────▲
//
// One node at a time, the leader, moves what is committed from the outbox into the table events, where it gets its place in the
// stream: stream_seq 1, 2, 3 …. Every node reads the end of that table once and hands each event to those of its subscriptions that
// it concerns. A subscription that is behind reads the table itself until it has caught up, and then goes on with what its node
// hands it; at the seam nothing is missed and nothing comes twice.
package events

import (
	"errors"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

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

	// Message is the log entry of an event that tells of one, once Next has returned it; else nil.
	Message *messages.Message

	encoded [forms]struct {
		once sync.Once
		wire []byte
	}
}

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

// Request says what a subscription is to be told.
type Request struct {
	DID      syntax.DID
	DeviceID string      // "" if it names none
	Cursor   *int64      // the first event that is wanted; nil: what happens from now on; 0: all that is kept
	Convos   []uuid.UUID // if not nil, only what concerns these
}
