package xrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"mlsd/api/lexcodec"
	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Event is one event of a stream. Which fields it has depends on its kind.
type Event struct {
	Cursor       int64
	Position     string // the cursor as an opaque text; only subscribeConvoEvents has it
	Kind         string // one of EventMessage and so on
	Convo        string
	Seq          int64 // seq of the log entry, or of the newest entry at that time
	Epoch        int64
	ID           string // message: its own id
	Sender       string // message, commit
	Body         []byte // message, commit
	MessageType  string // message
	DID          string // membership: the member that the change is about
	By           string // membership: who made the change; dispute: the committer
	Change       string // membership, keyPackages, dispute
	CommitNeeded bool   // membership
	Device       string // welcome, keyPackages
	Ref          string // welcome
	Suite        string // keyPackages
	Available    int64  // keyPackages
	Name         string // info
	Payload      []byte // typing: the bytes that the sender, DID, has encrypted
	Cursors      []MemberCursor
	Created      string // createdAt as the server wrote it
	At           time.Time
}

// MemberCursor is how far a member is, in a cursor event.
type MemberCursor struct {
	DID       string `json:"did"`
	Read      int64  `json:"read"`
	Delivered int64  `json:"delivered"`
}

// Kinds of events: the names of their definitions without "Event".
const (
	EventMessage     = "message"
	EventCommit      = "commit"
	EventWelcome     = "welcome"
	EventMembership  = "membership"
	EventKeyPackages = "keyPackages"
	EventDispute     = "dispute"
	EventArrival     = "arrival"
	EventReset       = "reset"
	EventRole        = "role"
	EventMetadata    = "metadata"
	EventInvitation  = "invitation"
	EventInfo        = "info"
	EventTyping      = "typing"
	EventMoved       = "cursor" // cursors of other members
)

// Kept reports whether the event has a place in the stream. An info event has none, and a signal
// has none.
func (e *Event) Kept() bool { return e.Kind != EventInfo && !e.signal() }

// signal reports whether the event reaches only connected subscribers.
func (e *Event) signal() bool { return e.Kind == EventTyping || e.Kind == EventMoved }

// StreamError is an error frame. The stream ends after it.
type StreamError struct{ Name, Message string }

func (e *StreamError) Error() string { return "stream: " + e.Name + ": " + e.Message }

// eventFields are the fields of all kinds of events except info, as CBOR and JSON name them. No two
// of these kinds use one name for different things. Unknown fields are ignored.
type eventFields struct {
	Message       *messageFields `json:"message"`
	ConvoID       string         `json:"convoId"`
	Seq           int64          `json:"seq"`
	Epoch         int64          `json:"epoch"`
	Sender        string         `json:"sender"`
	CommitData    lexcodec.Bytes `json:"commitData"`
	DID           string         `json:"did"`
	By            string         `json:"by"`
	Committer     string         `json:"committer"`
	Inviter       string         `json:"inviter"`
	Service       string         `json:"service"`
	Change        string         `json:"change"`
	State         string         `json:"state"`
	CommitNeeded  bool           `json:"commitNeeded"`
	DeviceID      string         `json:"deviceId"`
	KeyPackageRef string         `json:"keyPackageRef"`
	CipherSuite   string         `json:"cipherSuite"`
	Available     int64          `json:"available"`
	CreatedAt     string         `json:"createdAt"`
	Payload       lexcodec.Bytes `json:"payload"`
	Cursors       []MemberCursor `json:"cursors"`
}

type messageFields struct {
	ID          string         `json:"id"`
	ConvoID     string         `json:"convoId"`
	Sender      string         `json:"sender"`
	Ciphertext  lexcodec.Bytes `json:"ciphertext"`
	Epoch       int64          `json:"epoch"`
	Seq         int64          `json:"seq"`
	MessageType string         `json:"messageType"`
	CreatedAt   string         `json:"createdAt"`
}

// event makes an Event of the fields.
func (f *eventFields) event(kind string, cursor int64) Event {
	e := Event{
		Kind: kind, Cursor: cursor, Convo: f.ConvoID, Seq: f.Seq, Epoch: f.Epoch, Sender: f.Sender, Body: f.CommitData,
		DID: f.DID, By: f.By, Change: f.Change, CommitNeeded: f.CommitNeeded, Device: f.DeviceID, Ref: f.KeyPackageRef,
		Suite: f.CipherSuite, Available: f.Available, Created: f.CreatedAt, Payload: f.Payload, Cursors: f.Cursors,
	}
	switch kind {
	case EventDispute:
		e.By = f.Committer
	case EventArrival:
		e.Change = f.State
	case EventInvitation:
		e.DID, e.By = f.Service, f.Inviter
	}
	if m := f.Message; kind == EventMessage && m != nil {
		e.ID, e.Convo, e.Sender, e.Body, e.MessageType = m.ID, m.ConvoID, m.Sender, m.Ciphertext, m.MessageType
		e.Epoch, e.Seq, e.Created = m.Epoch, m.Seq, m.CreatedAt
	}
	return e
}

// ReadFrame reads a message of subscribeConvoEvents: a header and a body, both DAG-CBOR. The error
// is a *StreamError if the frame is an error frame.
func ReadFrame(frame []byte) (_ Event, err error) {
	defer Catch(&err)
	var header struct {
		Op int64  `cbor:"op"`
		T  string `cbor:"t"`
	}
	body, err := readItem(headerMode, frame, &header)
	Check(errs.Wrap(err, "frame: header"))
	if header.Op == -1 && header.T == "" {
		return Event{}, readErrorFrame(body)
	}
	kind, ok := kindOf(strings.TrimPrefix(header.T, "#"))
	if header.Op != 1 || !ok || !strings.HasPrefix(header.T, "#") {
		return Event{}, fmt.Errorf("frame: op %d, t %q", header.Op, header.T)
	}
	if kind == EventInfo {
		return readInfoFrame(body)
	}
	var fields struct {
		eventFields
		Cursor   int64  `cbor:"cursor"`
		Position string `cbor:"position"`
	}
	Check(errs.Wrap(readLastItem(body, &fields), "frame: %s", kind))
	e := fields.event(kind, fields.Cursor)
	e.Position = fields.Position
	return e, e.check()
}

// readInfoFrame reads an info event, whose message is a text for people.
func readInfoFrame(body []byte) (Event, error) {
	var fields struct {
		Name    string `cbor:"name"`
		Message string `cbor:"message"`
	}
	if err := readLastItem(body, &fields); err != nil {
		return Event{}, fmt.Errorf("frame: info: %w", err)
	}
	e := Event{Kind: EventInfo, Name: fields.Name}
	return e, e.check()
}

// EventCursor reads the cursor of a message of subscribeConvoEvents. A subscriber resumes from it.
func EventCursor(frame []byte) (int64, error) {
	e, err := ReadFrame(frame)
	return e.Cursor, err
}

func readErrorFrame(body []byte) error {
	var fields struct {
		Error   string `cbor:"error"`
		Message string `cbor:"message"`
	}
	if err := readLastItem(body, &fields); err != nil {
		return fmt.Errorf("frame: error: %w", err)
	}
	if fields.Error == "" {
		return errors.New("frame: an error without a name")
	}
	return &StreamError{Name: fields.Error, Message: fields.Message}
}

// The limits of DAG-CBOR. A header has no unknown fields; a body may have some.
var (
	bodyMode   = decMode(cbor.ExtraDecErrorNone)
	headerMode = decMode(cbor.ExtraDecErrorUnknownField)
	dagMode    = Must(cbor.EncOptions{Sort: cbor.SortLengthFirst, IndefLength: cbor.IndefLengthForbidden}.EncMode())
)

func decMode(unknown cbor.ExtraDecErrorCond) cbor.DecMode {
	return Must(cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, ExtraReturnErrors: unknown,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive, MaxNestedLevels: 16,
	}.DecMode())
}

// readItem decodes the first item of data into v and returns what follows. The item must be encoded
// as DAG-CBOR demands: encoding its value again must give the same bytes.
func readItem(mode cbor.DecMode, data []byte, v any) (rest []byte, err error) {
	defer Catch(&err)
	rest = Must(mode.UnmarshalFirst(data, v))
	item := data[:len(data)-len(rest)]
	var value any
	Check(bodyMode.Unmarshal(item, &value))
	if again, err := dagMode.Marshal(value); err != nil || !bytes.Equal(item, again) {
		return nil, errors.Join(errors.New("not in the one form of DAG-CBOR"), err)
	}
	return rest, nil
}

// readLastItem is readItem for an item that nothing may follow.
func readLastItem(data []byte, v any) error {
	rest, err := readItem(bodyMode, data, v)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow", len(rest))
	}
	return err
}

func kindOf(definition string) (string, bool) {
	kind, ok := strings.CutSuffix(definition, "Event")
	switch kind {
	case EventMessage, EventCommit, EventWelcome, EventMembership, EventKeyPackages, EventDispute, EventArrival,
		EventReset, EventRole, EventMetadata, EventInvitation, EventInfo, EventTyping, EventMoved:
		return kind, ok
	}
	return "", false
}

// check parses the time, and refuses an event that lacks a field of its kind.
func (e *Event) check() (err error) {
	var missing string
	switch e.Kind {
	case EventInfo:
		if e.Name == "" {
			return errors.New("info: no name")
		}
		return nil
	case EventMessage:
		missing = firstEmpty("id", e.ID, "convoId", e.Convo, "sender", e.Sender, "messageType", e.MessageType)
	case EventCommit:
		missing = firstEmpty("convoId", e.Convo, "sender", e.Sender)
	case EventMembership:
		missing = firstEmpty("convoId", e.Convo, "did", e.DID, "change", e.Change)
	case EventWelcome:
		missing = firstEmpty("convoId", e.Convo, "deviceId", e.Device)
	case EventDispute:
		missing = firstEmpty("convoId", e.Convo, "change", e.Change)
	case EventArrival:
		missing = firstEmpty("convoId", e.Convo, "did", e.DID, "state", e.Change)
	case EventReset, EventMetadata:
		missing = firstEmpty("convoId", e.Convo, "by", e.By)
	case EventRole:
		missing = firstEmpty("convoId", e.Convo, "did", e.DID)
	case EventInvitation:
		missing = firstEmpty("service", e.DID, "convoId", e.Convo, "inviter", e.By, "deviceId", e.Device)
	case EventKeyPackages:
		missing = firstEmpty("deviceId", e.Device, "cipherSuite", e.Suite, "change", e.Change)
	case EventTyping:
		missing = firstEmpty("convoId", e.Convo, "did", e.DID, "payload", string(e.Payload))
	case EventMoved:
		missing = firstEmpty("convoId", e.Convo)
	}
	if e.signal() {
		return e.checkSignal(missing)
	}
	switch {
	case missing != "":
		return fmt.Errorf("%s: no %s", e.Kind, missing)
	case e.Cursor <= 0:
		return fmt.Errorf("%s: cursor %d", e.Kind, e.Cursor)
	case max(e.Cursor, e.Seq, e.Epoch, e.Available) > maxInteger:
		return fmt.Errorf("%s: an integer of more than 53 bits", e.Kind)
	case (e.Kind == EventMessage || e.Kind == EventCommit) && (e.Seq <= 0 || len(e.Body) == 0):
		return fmt.Errorf("%s: seq %d, %d bytes", e.Kind, e.Seq, len(e.Body))
	}
	if e.At, err = time.Parse(time.RFC3339, e.Created); err != nil {
		return fmt.Errorf("%s: createdAt: %w", e.Kind, err)
	}
	return nil
}

// checkSignal refuses a signal that claims to be kept, or that lacks a field.
func (e *Event) checkSignal(missing string) error {
	switch {
	case missing != "":
		return fmt.Errorf("%s: no %s", e.Kind, missing)
	case e.Cursor != 0 || e.Position != "":
		return fmt.Errorf("%s: cursor %d, position %q, and it has no place", e.Kind, e.Cursor, e.Position)
	case e.Kind == EventMoved && len(e.Cursors) == 0:
		return fmt.Errorf("%s: no cursors", e.Kind)
	}
	return nil
}

// maxInteger is the largest integer of the AT Protocol's data model.
const maxInteger = 1<<53 - 1

// firstEmpty takes names and values, and returns the first name whose value is empty.
func firstEmpty(pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return pairs[i]
		}
	}
	return ""
}

// ReadServerSent reads an event of streamConvoEvents. id is the id that came with this event, and
// must be the event's cursor. An info event must have no id, so that the last event's id stays in
// force.
func ReadServerSent(id, event string, data []byte) (_ Event, err error) {
	defer Catch(&err)
	kind, ok := kindOf(event)
	if !ok {
		return Event{}, fmt.Errorf("server-sent event %q", event)
	}
	var fields struct {
		eventFields
		Cursor string `json:"cursor"`
		Info   string `json:"info"`
	}
	Check(errs.Wrap(json.Unmarshal(data, &fields), "server-sent %s", kind))
	if kind == EventInfo {
		if id != "" {
			return Event{}, fmt.Errorf("server-sent info: it has the id %q", id)
		}
		e := Event{Kind: kind}
		e.Name, _, _ = strings.Cut(fields.Info, ":")
		return e, e.check()
	}
	if e := fields.event(kind, 0); e.signal() {
		if id != "" || fields.Cursor == "" {
			return Event{}, fmt.Errorf("server-sent %s: its id is %q, and the cursor before it %q", kind, id, fields.Cursor)
		}
		return e, e.check()
	}
	if fields.Cursor != id {
		return Event{}, fmt.Errorf("server-sent %s: its id is %q and its cursor %q", kind, id, fields.Cursor)
	}
	cursor, err := strconv.ParseInt(fields.Cursor, 10, 64)
	Check(errs.Wrap(err, "server-sent %s", kind))
	e := fields.event(kind, cursor)
	return e, e.check()
}
