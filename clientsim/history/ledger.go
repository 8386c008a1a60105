package history

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// Ledger watches the requests below the injected faults, so it also sees the answers that the
// client never gets. It checks idempotency: for each caller, method and key there is one original
// answer. Every other answer must be byte-identical and marked as a replay.
type Ledger struct {
	wire http.RoundTripper

	mu         sync.Mutex // guards the fields below
	records    map[ledgerKey]*record
	violations []Violation
}

type ledgerKey struct {
	caller syntax.DID
	method syntax.NSID
	convo  string
	key    string
}

// record is what was seen under one key.
type record struct {
	attempts  int // requests sent
	originals int // 2xx answers without the replay header
	replays   int
	unknown   int // attempts with an unknown outcome
	status    int
	body      []byte
	// restored is set if the server was restored since the last answer. The next answer may repeat
	// the last answer, or be a new original.
	restored bool
}

// NewLedger returns a ledger that sends requests through wire.
func NewLedger(wire http.RoundTripper) *Ledger {
	return &Ledger{wire: wire, records: map[ledgerKey]*record{}}
}

// RoundTrip implements http.RoundTripper.
func (l *Ledger) RoundTrip(req *http.Request) (*http.Response, error) {
	trip, ok := xrpc.CallInfoFrom(req.Context())
	if !ok {
		return l.wire.RoundTrip(req)
	}
	key := ledgerKey{trip.Who.DID, trip.Call.Method, trip.Call.Convo, trip.Call.Key}
	l.sending(key)
	resp, err := l.wire.RoundTrip(req)
	if err != nil {
		l.lost(key)
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		l.lost(key)
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case trip.Call.Key == "":
	case resp.StatusCode/100 == 2:
		l.answered(key, xrpc.Answer{Status: resp.StatusCode, Header: resp.Header, Body: body})
	case resp.StatusCode >= 500:
		l.lost(key) // the server may or may not have done the write
	}
	return resp, nil
}

func (l *Ledger) recordOf(key ledgerKey) *record {
	r, ok := l.records[key]
	if !ok {
		r = &record{}
		l.records[key] = r
	}
	return r
}

func (l *Ledger) sending(key ledgerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordOf(key).attempts++
}

func (l *Ledger) lost(key ledgerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordOf(key).unknown++
}

func (l *Ledger) answered(key ledgerKey, a xrpc.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.recordOf(key)
	if r.restored {
		r.restored = false
		if !a.Replayed() {
			*r = record{attempts: 1}
		}
	}
	if a.Replayed() {
		r.replays++
	} else {
		r.originals++
	}
	if r.body == nil {
		r.status, r.body = a.Status, bytes.Clone(a.Body)
	}
	switch {
	case a.Status != r.status || !bytes.Equal(a.Body, r.body):
		l.violate(key, "answered %d %.200q, and before %d %.200q", a.Status, a.Body, r.status, r.body)
	case r.originals > 1:
		l.violate(key, "answered %d times as if for the first time", r.originals)
	case a.Replayed() && r.attempts == 1:
		l.violate(key, "the very first request was answered as a replay")
	}
}

func (l *Ledger) violate(key ledgerKey, format string, args ...any) {
	l.violations = append(l.violations, Violation{
		Kind: Broken, Convo: key.convo,
		What: fmt.Sprintf("%s with key %s: ", key.method, key.key) + fmt.Sprintf(format, args...),
	})
}

// Original returns the body of the first 2xx answer under a key, whether or not the client received
// it.
func (l *Ledger) Original(who *xrpc.Account, call xrpc.Call) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.records[ledgerKey{who.DID, call.Method, call.Convo, call.Key}]
	if !ok || r.body == nil {
		return nil, false
	}
	return bytes.Clone(r.body), true
}

// Restored records that the server was restored, and may have lost records.
func (l *Ledger) Restored() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		r.restored = true
	}
}

// Violations returns the violations since the last call and forgets all keys. Replays without an
// original are allowed only if the outcome of some attempt is unknown.
func (l *Ledger) Violations() []Violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, r := range l.records {
		if r.replays > 0 && r.originals == 0 && r.unknown == 0 {
			l.violate(key, "%d replays of an answer that was never given", r.replays)
		}
	}
	found := slices.Clone(l.violations)
	l.violations = nil
	clear(l.records)
	return found
}
