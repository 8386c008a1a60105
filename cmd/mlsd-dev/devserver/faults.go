package devserver

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
)

// Kinds of faults.
const (
	// loseAnswer means: the request is executed, and the connection closes without an answer. If
	// the answer is an event stream, the stream begins, and its connection closes after Ms.
	loseAnswer = "loseAnswer"
	// delay means: the request is executed after Ms.
	delay = "delay"
	// answerStatus means: the request is not executed. The answer is Status, with RetryAfter.
	answerStatus = "status"
	// cut means: the connection closes, and the request is not executed.
	cut = "cut"
	// slow means: the request is executed at once, and its answer takes Ms to arrive.
	slow = "slow"

	// pdsAway means: the PDS does not execute a request about the account DID. The connection
	// closes, or the answer is Status.
	pdsAway = "pdsAway"
	// pdsSlow means: the PDS executes a request about the account after Ms.
	pdsSlow = "pdsSlow"
	// recordMissing means: the PDS reads as if the account listed no device.
	recordMissing = "recordMissing"
	// recordOtherKey means: the account's list of devices has other signature keys, under the same
	// record keys.
	recordOtherKey = "recordOtherKey"
	// badProof means: another key than the account's has signed the proof of a record of a device.
	badProof = "badProof"
)

// kind says what a kind of fault takes, and where it strikes.
type kind struct {
	name       string
	ms, status bool // it takes Ms; it takes Status and RetryAfter
	pds        bool // it strikes the PDS, not the service
	// reads are the methods of the PDS that it strikes, if they are about devices. Nil means all
	// requests to the PDS.
	reads []string
}

var kinds = []kind{
	{name: loseAnswer, ms: true},
	{name: delay, ms: true},
	{name: answerStatus, status: true},
	{name: cut},
	{name: slow, ms: true},
	{name: pdsAway, status: true, pds: true},
	{name: pdsSlow, ms: true, pds: true},
	{name: recordMissing, pds: true, reads: []string{getRecord, listRecords, getProof}},
	{name: recordOtherKey, pds: true, reads: []string{getRecord, listRecords, getProof}},
	{name: badProof, pds: true, reads: []string{getProof}},
}

// kindOf returns the kind with that name.
func kindOf(name string) (kind, error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.name)
		}
		return kind{}, badRequest("kind must be one of %s", strings.Join(names, ", "))
	}
	return kinds[i], nil
}

const (
	// defaultMs is the default Ms: of a delay, a slow answer, or a stream before its loss.
	defaultMs = 1000
	// maxMs is the largest Ms.
	maxMs = 10 * 60 * 1000
	// maxFaults is how many faults can be planned at one time.
	maxFaults = 1000
)

// Fault is a planned fault, as POST /dev/faults accepts it and GET lists it.
type Fault struct {
	ID string `json:"id"` // made by the server
	// Lxm and DID select requests by method and by caller. At the PDS, DID is the account whose
	// repository it is. An empty field selects all, but a fault of the service strikes the PDS only
	// if Lxm says so.
	Lxm  syntax.NSID `json:"lxm,omitempty"`
	DID  syntax.DID  `json:"did,omitempty"`
	Kind string      `json:"kind"`
	// Status is the HTTP status of the kind "status", 503 by default.
	Status int `json:"status,omitempty"`
	// RetryAfter is the answer's Retry-After, in seconds. Nil means that the answer has none.
	RetryAfter *int `json:"retryAfter,omitempty"`
	// Ms is a time in milliseconds; see the kinds.
	Ms *int `json:"ms,omitempty"`
	// Times is how many requests the fault affects. Default: 1. 0 means all of them.
	Times *int `json:"times"`
	// Struck is how many requests the fault has affected.
	Struck int `json:"struck"`
}

// faults are the planned faults. They are safe for concurrent use.
type faults struct {
	mu   sync.Mutex // guards the fields below
	last int        // the newest id
	plan []*Fault
}

// clear removes the planned faults. Their ids are not used again.
func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = nil
}

func (f *faults) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.plan = 0, nil
}

func (f *faults) list() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []Fault{}
	for _, one := range f.plan {
		all = append(all, *one)
	}
	return all
}

func (f *faults) add(one Fault) (id string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.plan) == maxFaults {
		return "", badRequest("%d faults are planned: DELETE /dev/faults removes them", maxFaults)
	}
	f.last++
	one.ID, one.Struck = strconv.Itoa(f.last), 0
	f.plan = append(f.plan, &one)
	return one.ID, nil
}

// target is what a request is about, for the choice of a fault.
type target struct {
	lxm     string
	did     syntax.DID // the caller; at the PDS, the account whose repository it is
	pds     bool       // the request is one to the PDS
	devices bool       // it is about records of devices
}

// targetOf reports what a request is about, and whether faults can strike it.
func targetOf(r *http.Request) (t target, ok bool) {
	t.lxm, ok = strings.CutPrefix(r.URL.Path, "/xrpc/")
	t.did, t.pds = callerOf(r), ofPDS(t.lxm)
	if t.pds && r.Method == http.MethodGet {
		q := r.URL.Query()
		t.did, t.devices = syntax.DID(q.Get("repo")+q.Get("did")), q.Get("collection") == deviceCollection
	}
	return t, ok
}

// ofPDS reports whether a method is one of a PDS.
func ofPDS(lxm string) bool { return strings.HasPrefix(lxm, "com.atproto.") }

// strikes reports whether a fault strikes a request.
func (f *Fault) strikes(t target) bool {
	k, err := kindOf(f.Kind)
	switch {
	case err != nil, f.Lxm != "" && f.Lxm.String() != t.lxm, f.DID != "" && f.DID != t.did,
		*f.Times != 0 && f.Struck >= *f.Times:
		return false
	case !t.pds || !k.pds:
		return t.pds == k.pds || f.Lxm != ""
	}
	return k.reads == nil || t.devices && slices.Contains(k.reads, t.lxm)
}

// strike returns the oldest fault that affects the request, and counts it.
func (f *faults) strike(r *http.Request) (Fault, bool) {
	t, isCall := targetOf(r)
	if !isCall {
		return Fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.plan, func(one *Fault) bool { return one.strikes(t) })
	if i < 0 {
		return Fault{}, false
	}
	f.plan[i].Struck++
	return *f.plan[i], true
}

// callerOf returns the caller that a request names. The caller is not verified here: the service
// does that.
func callerOf(r *http.Request) syntax.DID {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	c, err := claimsOf(token)
	if err != nil {
		return ""
	}
	return c.Iss
}

// check sets the defaults of a fault, and refuses a fault that makes no sense.
func (f *Fault) check() error {
	k, err := kindOf(f.Kind)
	if f.Times == nil {
		f.Times = pointer(1)
	}
	if k.ms && f.Ms == nil {
		f.Ms = pointer(defaultMs)
	}
	if f.Kind == answerStatus && f.Status == 0 {
		f.Status = http.StatusServiceUnavailable
	}
	switch {
	case err != nil:
		return err
	case *f.Times < 0:
		return badRequest("times must not be negative")
	case !k.status && (f.Status != 0 || f.RetryAfter != nil):
		return badRequest("status and retryAfter do not belong to the kind %s", f.Kind)
	case !k.ms && f.Ms != nil:
		return badRequest("ms does not belong to the kind %s", f.Kind)
	case k.ms && (*f.Ms < 0 || *f.Ms > maxMs):
		return badRequest("ms must be from 0 to %d", maxMs)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return badRequest("status must be from 400 to 599")
	case f.RetryAfter != nil && (*f.RetryAfter < 0 || f.Status == 0):
		return badRequest("retryAfter must not be negative, and needs a status")
	case k.pds && f.Lxm != "" && !k.strikesMethod(f.Lxm.String()):
		return badRequest("the kind %s does not strike %s", f.Kind, f.Lxm)
	}
	return nil
}

// strikesMethod reports whether a kind of the PDS can strike a method.
func (k kind) strikesMethod(lxm string) bool {
	return ofPDS(lxm) && (k.reads == nil || slices.Contains(k.reads, lxm))
}

func (f *Fault) duration() time.Duration { return time.Duration(*f.Ms) * time.Millisecond }

func pointer[T any](v T) *T { return &v }

// PlannedFault is the answer of POST /dev/faults.
type PlannedFault struct {
	ID string `json:"id"`
}

func (s *Server) planFault(r *http.Request) any {
	f := read[Fault](r)
	Check(f.check())
	if first := s.services[0]; s != first && (Must(kindOf(f.Kind)).pds || ofPDS(f.Lxm.String())) {
		Check(badRequest("the PDS belongs to the first service: plan its faults at %s", first.cfg.URL))
	}
	return PlannedFault{Must(s.faults.add(f))}
}

// Faults is the answer of GET /dev/faults.
type Faults struct {
	Faults []Fault `json:"faults"`
}

func (s *Server) listFaults(*http.Request) any { return Faults{s.faults.list()} }

func (s *Server) clearFaults(*http.Request) any {
	s.faults.clear()
	return struct{}{}
}
