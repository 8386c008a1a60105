package clientsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"mlsd/api/mlsapi"
)

// happening is one event of a stream, as a subscriber is told of it.
type happening struct {
	cursor  int64
	kind    string // the name of its definition, without Event
	convo   string
	seq     int64 // of the log entry, or of the newest one then
	epoch   int64
	id      string // message: its own
	sender  string // message, commit
	body    []byte // message, commit
	form    string // message: messageType
	did     string // membership: whose
	by      string // membership
	change  string // membership, keyPackages
	needed  bool   // membership: commitNeeded
	device  string // welcome, keyPackages
	ref     string // welcome
	suite   string // keyPackages
	left    int64  // keyPackages: available
	name    string // info
	created string // createdAt, as it stands there
	at      time.Time
}

// Kinds of happenings.
const (
	toldMessage     = "message"
	toldCommit      = "commit"
	toldWelcome     = "welcome"
	toldMembership  = "membership"
	toldKeyPackages = "keyPackages"
	toldInfo        = "info"
)

// streamError is an error frame, after which a stream ends.
type streamError struct{ name, message string }

func (e *streamError) Error() string { return "stream: " + e.name + ": " + e.message }

// readFrame reads a message of subscribeConvoEvents: a header and a body, both DAG-CBOR. The error is a *streamError if that is
// what the frame says.
func readFrame(frame []byte) (happening, error) {
	var h happening
	c := &cbor{rest: frame}
	var op int64
	var t string
	c.fields("header", func(key string) {
		switch key {
		case "op":
			op = c.integer(key)
		case "t":
			t = c.text(key)
		default:
			c.fail("header: unknown key %q", key)
		}
	})
	switch {
	case c.err != nil:
	case op == -1 && t == "":
		return h, readErrorFrame(c)
	case op != 1:
		return h, fmt.Errorf("frame: op %d, t %q", op, t)
	default:
		var ok bool
		if h.kind, ok = kindOf(strings.TrimPrefix(t, "#")); !ok || !strings.HasPrefix(t, "#") {
			return h, fmt.Errorf("frame: t is %q", t)
		}
		h.readBody(c)
	}
	if err := c.end(); err != nil {
		return h, err
	}
	return h, h.settle()
}

// EventCursor reads the cursor out of a message of subscribeConvoEvents, from which a subscriber goes on after its connection has
// ended.
func EventCursor(frame []byte) (int64, error) {
	h, err := readFrame(frame)
	return h.cursor, err
}

func readErrorFrame(c *cbor) error {
	e := &streamError{}
	c.fields("error", func(key string) {
		switch key {
		case "error":
			e.name = c.text(key)
		case "message":
			e.message = c.text(key)
		default:
			c.skip(0)
		}
	})
	if err := c.end(); err != nil {
		return err
	}
	if e.name == "" {
		return errors.New("frame: an error without a name")
	}
	return e
}

func kindOf(definition string) (string, bool) {
	kind, ok := strings.CutSuffix(definition, "Event")
	switch kind {
	case toldMessage, toldCommit, toldWelcome, toldMembership, toldKeyPackages, toldInfo:
		return kind, ok
	}
	return "", false
}

// readBody reads the fields of every kind of event: no two mean different things by one name.
func (h *happening) readBody(c *cbor) {
	c.fields(h.kind, func(key string) {
		switch key {
		case "cursor":
			h.cursor = c.integer(key)
		case "message":
			if h.kind == toldMessage {
				h.readBody(c)
			} else {
				c.skip(0)
			}
		case "convoId":
			h.convo = c.text(key)
		case "seq":
			h.seq = c.integer(key)
		case "epoch":
			h.epoch = c.integer(key)
		case "id":
			h.id = c.text(key)
		case "sender":
			h.sender = c.text(key)
		case "ciphertext", "commitData":
			h.body = c.bytes(key)
		case "messageType":
			h.form = c.text(key)
		case "did":
			h.did = c.text(key)
		case "by":
			h.by = c.text(key)
		case "change":
			h.change = c.text(key)
		case "commitNeeded":
			h.needed = c.boolean(key)
		case "deviceId":
			h.device = c.text(key)
		case "keyPackageRef":
			h.ref = c.text(key)
		case "cipherSuite":
			h.suite = c.text(key)
		case "available":
			h.left = c.integer(key)
		case "name":
			h.name = c.text(key)
		case "createdAt":
			h.created = c.text(key)
		default:
			c.skip(0)
		}
	})
}

// settle reads the time, and looks for what every event of its kind has.
func (h *happening) settle() (err error) {
	var missing string
	switch h.kind {
	case toldInfo:
		if h.name == "" {
			return errors.New("info: no name")
		}
		return nil
	case toldMessage:
		missing = firstEmpty("id", h.id, "convoId", h.convo, "sender", h.sender, "messageType", h.form)
	case toldCommit:
		missing = firstEmpty("convoId", h.convo, "sender", h.sender)
	case toldMembership:
		missing = firstEmpty("convoId", h.convo, "did", h.did, "change", h.change)
	case toldWelcome:
		missing = firstEmpty("convoId", h.convo, "deviceId", h.device)
	case toldKeyPackages:
		missing = firstEmpty("deviceId", h.device, "cipherSuite", h.suite, "change", h.change)
	}
	switch {
	case missing != "":
		return fmt.Errorf("%s: no %s", h.kind, missing)
	case h.cursor <= 0:
		return fmt.Errorf("%s: cursor %d", h.kind, h.cursor)
	case (h.kind == toldMessage || h.kind == toldCommit) && (h.seq <= 0 || len(h.body) == 0):
		return fmt.Errorf("%s: seq %d, %d bytes", h.kind, h.seq, len(h.body))
	}
	if h.at, err = time.Parse(time.RFC3339, h.created); err != nil {
		return fmt.Errorf("%s: createdAt: %w", h.kind, err)
	}
	return nil
}

func firstEmpty(pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return pairs[i]
		}
	}
	return ""
}

// readServerSent reads an event of streamConvoEvents. Its id has to be its cursor.
func readServerSent(id, event string, data []byte) (happening, error) {
	var h happening
	var ok bool
	if h.kind, ok = kindOf(event); !ok {
		return h, fmt.Errorf("server-sent event %q", event)
	}
	var v struct {
		Cursor                               string
		Message                              json.RawMessage
		ConvoID, ID, Sender, DID, By, Change string
		Seq, Epoch, Available                int64
		CommitData                           mlsapi.Bytes
		CommitNeeded                         bool
		DeviceID, KeyPackageRef, CipherSuite string
		Info, CreatedAt                      string
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return h, fmt.Errorf("server-sent %s: %w", h.kind, err)
	}
	if v.Cursor != id {
		return h, fmt.Errorf("server-sent %s: its id is %q and its cursor %q", h.kind, id, v.Cursor)
	}
	if h.kind == toldInfo {
		h.name, _, _ = strings.Cut(v.Info, ":")
		return h, h.settle()
	}
	var err error
	if h.cursor, err = strconv.ParseInt(v.Cursor, 10, 64); err != nil {
		return h, fmt.Errorf("server-sent %s: %w", h.kind, err)
	}
	h.convo, h.seq, h.epoch, h.sender, h.body = v.ConvoID, v.Seq, v.Epoch, v.Sender, v.CommitData
	h.did, h.by, h.change, h.needed = v.DID, v.By, v.Change, v.CommitNeeded
	h.device, h.ref, h.suite, h.left, h.created = v.DeviceID, v.KeyPackageRef, v.CipherSuite, v.Available, v.CreatedAt
	if h.kind == toldMessage {
		if err := h.readView(v.Message); err != nil {
			return h, err
		}
	}
	return h, h.settle()
}

func (h *happening) readView(data []byte) error {
	var m struct {
		ID, ConvoID, Sender, MessageType, CreatedAt string
		Epoch, Seq                                  int64
		Ciphertext                                  mlsapi.Bytes
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("server-sent message: %w", err)
	}
	h.id, h.convo, h.sender, h.form, h.created = m.ID, m.ConvoID, m.Sender, m.MessageType, m.CreatedAt
	h.epoch, h.seq, h.body = m.Epoch, m.Seq, m.Ciphertext
	return nil
}
