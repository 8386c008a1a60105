package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/fxamacker/cbor/v2"

	"mlsd/internal/serviceauth"
	"mlsd/people/accounts"
)

// Kinds of messages, in metrics.
const (
	kindAccount   = "account"
	kindIdentity  = "identity"  // also for the record that names the account's delivery service
	kindOther     = "other"     // for example commits of records other than profiles
	kindInfo      = "info"      // about the stream
	kindInvalid   = "invalid"   // the message could not be read
	kindOversized = "oversized" // the message was too long to read
)

// The names that a relay uses to say that events are lost.
const (
	outdatedCursor = "OutdatedCursor"
	futureCursor   = "FutureCursor"
)

// message is the part of a frame that the follower uses.
type message struct {
	kind     string
	cursor   int64 // cursor of the frame, from which to continue the next time; 0 if it has none
	change   accounts.Change
	identity syntax.DID
	info     string // name of an info frame
	reset    bool   // the cursor is useless; never set by a frame
}

// clockSkew is how far ahead a relay's clock may be. A later time counts as the present, because a
// statement that is older than the last one has no effect.
const clockSkew = time.Minute

// failure is an error frame of the relay. The stream ends after it.
type failure struct{ name string }

func (e *failure) Error() string { return fmt.Sprintf("the relay ends the stream: %q", e.name) }

// statement is what a relay says about an account. Its fields have the names in #account and
// #identity.
type statement struct {
	Seq    int64  `cbor:"seq" json:"seq"`
	DID    string `cbor:"did" json:"did"`
	Time   string `cbor:"time" json:"time"`
	Active bool   `cbor:"active" json:"active"`
	Status string `cbor:"status" json:"status"`
}

// read makes a message from a statement about an account. kind becomes kindOther if the statement
// does not concern the account's right to write.
func (s statement) read(kind string, now time.Time) (message, error) {
	did, err := syntax.ParseDID(s.DID)
	if err != nil {
		return message{}, err
	}
	if kind == kindIdentity {
		return message{kind: kind, identity: did}, nil
	}
	at := now
	if sent, err := syntax.ParseDatetimeLenient(s.Time); err == nil && sent.Time().Before(now.Add(clockSkew)) {
		at = sent.Time()
	}
	c := accounts.Change{DID: did, At: at, Seq: s.Seq}
	switch status := accounts.Status(s.Status); {
	case s.Active:
		c.Status = accounts.Active
	case s.Status == "desynchronized", s.Status == "throttled": // concerns only the relay's copy
		return message{kind: kindOther}, nil
	case status == accounts.Suspended, status == accounts.TakenDown, status == accounts.Deleted:
		c.Status = status
	default: // also a status of a later protocol: the mildest status, which erases nothing
		c.Status = accounts.Deactivated
	}
	return message{kind: kind, change: c}, nil
}

// reposHeader is the first of the two objects of a frame of subscribeRepos
// (https://atproto.com/specs/event-stream). Only the needed fields of the second object are
// decoded.
type reposHeader struct {
	Op int64  `cbor:"op"`
	T  string `cbor:"t"`
}

// decoder reads frames.
type decoder struct {
	kind Kind
	cbor cbor.DecMode
	now  func() time.Time
}

// newDecoder returns a decoder. It uses the CBOR library of the simulator's client. indigo's
// generated types would decode whole commits, and need indigo's repository code.
func newDecoder(kind Kind, now func() time.Time) (*decoder, error) {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &decoder{kind: kind, cbor: mode, now: now}, nil
}

// decode reads a frame. If it is an error frame, the error is a *failure. Any other error says that
// the frame cannot be read.
func (d *decoder) decode(frame []byte) (message, error) {
	if d.kind == Jetstream {
		return d.jetstream(frame)
	}
	return d.repos(frame)
}

func (d *decoder) repos(frame []byte) (m message, err error) {
	var h reposHeader
	body, err := d.cbor.UnmarshalFirst(frame, &h)
	if err != nil {
		return m, fmt.Errorf("the header: %w", err)
	}
	switch {
	case h.Op == -1:
		var b struct {
			Error string `cbor:"error"`
		}
		if err := d.cbor.Unmarshal(body, &b); err != nil {
			return m, fmt.Errorf("the error: %w", err)
		}
		return m, &failure{b.Error}
	case h.Op != 1:
		return m, fmt.Errorf("op is %d", h.Op)
	case h.T == "#info":
		var b struct {
			Name string `cbor:"name"`
		}
		err := d.cbor.Unmarshal(body, &b)
		return message{kind: kindInfo, info: b.Name}, err
	case h.T == "#commit":
		var b struct {
			Seq  int64  `cbor:"seq"`
			Repo string `cbor:"repo"`
			Ops  []struct {
				Path string `cbor:"path"`
			} `cbor:"ops"`
		}
		if err := d.cbor.Unmarshal(body, &b); err != nil {
			return m, fmt.Errorf("the body: %w", err)
		}
		m = message{kind: kindOther, cursor: b.Seq}
		for _, op := range b.Ops {
			if strings.HasPrefix(op.Path, serviceauth.ProfileNSID+"/") {
				m.kind = kindIdentity
				m.identity, err = syntax.ParseDID(b.Repo)
			}
		}
		return m, err
	case h.T == "#account", h.T == "#identity":
		var b statement
		if err := d.cbor.Unmarshal(body, &b); err != nil {
			return m, fmt.Errorf("the body: %w", err)
		}
		m, err = b.read(strings.TrimPrefix(h.T, "#"), d.now())
		m.cursor = b.Seq
		return m, err
	}
	var b struct {
		Seq int64 `cbor:"seq"`
	}
	err = d.cbor.Unmarshal(body, &b)
	return message{kind: kindOther, cursor: b.Seq}, err
}

// jetstreamEvent is an event of a Jetstream. Its cursor is a time.
type jetstreamEvent struct {
	DID      string     `json:"did"`
	TimeUS   int64      `json:"time_us"`
	Kind     string     `json:"kind"`
	Account  *statement `json:"account"`
	Identity *statement `json:"identity"`
	Commit   *struct {
		Collection string `json:"collection"`
	} `json:"commit"`
}

func (d *decoder) jetstream(frame []byte) (m message, err error) {
	var e jetstreamEvent
	if err := json.Unmarshal(frame, &e); err != nil {
		return m, err
	}
	switch {
	case e.TimeUS <= 0:
		return m, errors.New("there is no time_us")
	case e.Kind == kindAccount && e.Account != nil:
		m, err = e.Account.read(kindAccount, d.now())
	case e.Kind == kindIdentity && e.Identity != nil:
		m, err = e.Identity.read(kindIdentity, d.now())
	case e.Commit != nil && e.Commit.Collection == serviceauth.ProfileNSID:
		m.kind = kindIdentity
		m.identity, err = syntax.ParseDID(e.DID)
	default:
		m = message{kind: kindOther}
	}
	m.cursor = e.TimeUS
	return m, err
}
