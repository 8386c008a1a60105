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
)

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
	// Lxm and DID select requests by method and by caller. An empty field selects all.
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

// strike returns the oldest fault that affects the request, and counts it.
func (f *faults) strike(r *http.Request) (Fault, bool) {
	lxm, isCall := strings.CutPrefix(r.URL.Path, "/xrpc/")
	if !isCall {
		return Fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.plan) == 0 {
		return Fault{}, false
	}
	caller := callerOf(r)
	i := slices.IndexFunc(f.plan, func(one *Fault) bool {
		return (one.Lxm == "" || one.Lxm.String() == lxm) && (one.DID == "" || one.DID == caller) &&
			(*one.Times == 0 || one.Struck < *one.Times)
	})
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
	if f.Times == nil {
		f.Times = pointer(1)
	}
	switch {
	case !slices.Contains([]string{loseAnswer, delay, answerStatus, cut, slow}, f.Kind):
		return badRequest("kind must be one of %s, %s, %s, %s, %s", loseAnswer, delay, answerStatus, cut, slow)
	case *f.Times < 0:
		return badRequest("times must not be negative")
	case f.Kind != answerStatus && (f.Status != 0 || f.RetryAfter != nil):
		return badRequest("status and retryAfter belong to the kind status")
	case f.Ms != nil && (f.Kind == answerStatus || f.Kind == cut):
		return badRequest("ms does not belong to the kind %s", f.Kind)
	}
	switch f.Kind {
	case answerStatus:
		return f.checkStatus()
	case loseAnswer, delay, slow:
		if f.Ms == nil {
			f.Ms = pointer(defaultMs)
		}
		if *f.Ms < 0 || *f.Ms > maxMs {
			return badRequest("ms must be from 0 to %d", maxMs)
		}
	}
	return nil
}

func (f *Fault) checkStatus() error {
	if f.Status == 0 {
		f.Status = http.StatusServiceUnavailable
	}
	switch {
	case f.Status < 400 || f.Status > 599:
		return badRequest("status must be from 400 to 599")
	case f.RetryAfter != nil && *f.RetryAfter < 0:
		return badRequest("retryAfter must not be negative")
	}
	return nil
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
