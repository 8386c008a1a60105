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
	kindIdentity  = "identity"  // or the record that names the account's delivery service
	kindOther     = "other"     // such as commits of other records than profiles
	kindInfo      = "info"      // about the stream
	kindInvalid   = "invalid"   // it could not be read
	kindOversized = "oversized" // it was too long to be read
)

// Names with which a relay says that events are lost.
const (
	outdatedCursor = "OutdatedCursor"
	futureCursor   = "FutureCursor"
)

// message is what is read of one frame.
type message struct {
	kind     string
	cursor   int64 // of the frame, to begin after it the next time; 0: it has none
	change   accounts.Change
	identity syntax.DID
	info     string // the name of a kindInfo
	reset    bool   // the cursor is worth nothing; not of a frame
}

// clockSkew is how far ahead a relay's clock may be. A later time counts as now, because a
// statement that is older than the last one has no effect.
const clockSkew = time.Minute

// failure is an error frame of the relay. The stream ends after it.
type failure struct{ name string }

func (e *failure) Error() string { return fmt.Sprintf("the relay ends the stream: %q", e.name) }

// statement is what a relay says of an account, by the names of #account and #identity.
type statement struct {
	Seq    int64  `cbor:"seq" json:"seq"`
	DID    string `cbor:"did" json:"did"`
	Time   string `cbor:"time" json:"time"`
	Active bool   `cbor:"active" json:"active"`
	Status string `cbor:"status" json:"status"`
}

// read makes a message of the statement of an account. kind becomes kindOther if the statement says
// nothing of the account's right to write.
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
	case s.Status == "desynchronized", s.Status == "throttled": // only the relay's copy is concerned
		return message{kind: kindOther}, nil
	case status == accounts.Suspended, status == accounts.TakenDown, status == accounts.Deleted:
		c.Status = status
	default: // also a status of later protocols: the mildest one, which erases nothing
		c.Status = accounts.Deactivated
	}
	return message{kind: kind, change: c}, nil
}

// reposHeader is the first of the two objects of a frame of subscribeRepos
// (https://atproto.com/specs/event-stream). Of the second one only what is needed is decoded.
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

// newDecoder returns a decoder. The CBOR library is the one that the simulator's client uses.
// indigo's generated types decode whole commits, and bring its repository code with them.
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

// decode reads a frame. An error frame is a *failure. Any other error says that the frame cannot be
// read.
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
