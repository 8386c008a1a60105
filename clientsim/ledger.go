package clientsim

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Ledger watches the wire below all faults, so it also knows the answers that
// the client never heard, and holds the server to its word about keys: per
// caller, method and key there is one original answer, and every other one is
// byte-identical and says that it is a replay.
type Ledger struct {
	wire http.RoundTripper

	mu         sync.Mutex // guards what follows
	accounts   map[ledgerKey]*record
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
	unknown   int // attempts whose outcome nobody knows
	status    int
	body      []byte
}

// NewLedger watches wire.
func NewLedger(wire http.RoundTripper) *Ledger {
	return &Ledger{wire: wire, accounts: map[ledgerKey]*record{}}
}

// RoundTrip implements http.RoundTripper.
func (l *Ledger) RoundTrip(req *http.Request) (*http.Response, error) {
	trip, ok := tripFrom(req.Context())
	if !ok {
		return l.wire.RoundTrip(req)
	}
	key := ledgerKey{trip.who.DID, trip.call.Method, trip.call.Convo, trip.call.Key}
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
	case trip.call.Key == "":
	case resp.StatusCode/100 == 2:
		l.answered(key, Answer{Status: resp.StatusCode, Header: resp.Header, Body: body})
	case resp.StatusCode >= 500:
		l.lost(key) // the server itself may not know
	}
	return resp, nil
}

func (l *Ledger) account(key ledgerKey) *record {
	r, ok := l.accounts[key]
	if !ok {
		r = &record{}
		l.accounts[key] = r
	}
	return r
}

func (l *Ledger) sending(key ledgerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(key).attempts++
}

func (l *Ledger) lost(key ledgerKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(key).unknown++
}

func (l *Ledger) answered(key ledgerKey, a Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.account(key)
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

// Original returns the first 2xx body under a key, heard or not.
func (l *Ledger) Original(who *Account, call Call) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.accounts[ledgerKey{who.DID, call.Method, call.Convo, call.Key}]
	if !ok || r.body == nil {
		return nil, false
	}
	return bytes.Clone(r.body), true
}

// Expired forgets what was seen under a key: the server may as well.
func (l *Ledger) Expired(who *Account, call Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.accounts, ledgerKey{who.DID, call.Method, call.Convo, call.Key})
}

// Settle reports what was violated since the last call. Every key whose
// answers were all lost is fine; one with two replays and no original is fine
// only if some attempt's outcome is unknown.
func (l *Ledger) Settle() []Violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, r := range l.accounts {
		if r.replays > 0 && r.originals == 0 && r.unknown == 0 {
			l.violate(key, "%d replays of an answer that was never given", r.replays)
		}
	}
	found := slices.Clone(l.violations)
	l.violations = nil
	clear(l.accounts)
	return found
}
