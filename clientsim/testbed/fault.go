package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// FaultKind is what the network does to one request.
type FaultKind string

const (
	// LoseRequest: the request never reaches the server.
	LoseRequest FaultKind = "lose-request"
	// LoseAnswer: the server answers and the client never gets the answer.
	LoseAnswer FaultKind = "lose-answer"
	// Repeat: the request arrives twice at once, the second time with a new token if this process
	// makes its tokens. The client gets the first answer.
	Repeat FaultKind = "repeat"
	// Delay: the request arrives late.
	Delay FaultKind = "delay"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Kind  FaultKind
	Delay time.Duration
}

// FaultPlan decides what goes wrong. Next is called once per request, concurrently.
type FaultPlan interface {
	Next(xrpc.Call) (Fault, bool)
}

// errLost is the error of a request whose packet was lost.
var errLost = errors.New("clientsim: the network lost the packet")

// FaultyTransport is a RoundTripper that does to each request what its plan says.
type FaultyTransport struct {
	wire http.RoundTripper

	mu   sync.Mutex // guards plan
	plan FaultPlan
}

// NewFaultyTransport puts faults in front of wire. Without a plan it changes nothing.
func NewFaultyTransport(wire http.RoundTripper) *FaultyTransport { return &FaultyTransport{wire: wire} }

// Use sets the plan; nil ends all faults.
func (f *FaultyTransport) Use(p FaultPlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
}

// CloseIdleConnections closes the idle connections of the wire.
func (f *FaultyTransport) CloseIdleConnections() {
	if idle, ok := f.wire.(interface{ CloseIdleConnections() }); ok {
		idle.CloseIdleConnections()
	}
}

func (f *FaultyTransport) next(call xrpc.Call) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan == nil {
		return Fault{}, false
	}
	return f.plan.Next(call)
}

// RoundTrip implements http.RoundTripper.
func (f *FaultyTransport) RoundTrip(req *http.Request) (_ *http.Response, err error) {
	defer Catch(&err)
	trip, ok := xrpc.CallInfoFrom(req.Context())
	if !ok {
		return f.wire.RoundTrip(req)
	}
	fault, ok := f.next(trip.Call)
	if !ok {
		return f.wire.RoundTrip(req)
	}
	switch fault.Kind {
	case LoseRequest:
		return nil, errLost
	case Delay:
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		return f.wire.RoundTrip(req)
	case Repeat:
		return f.repeat(req, trip)
	case LoseAnswer:
		resp := Must(f.wire.RoundTrip(req))
		Check(xrpc.Drain(resp))

		return nil, errLost
	}
	return nil, fmt.Errorf("clientsim: unknown fault %q", fault.Kind)
}

// repeat sends req twice at once and returns the first answer. It also waits for the second answer:
// the ledger must see both, and no request may outlive its scenario.
func (f *FaultyTransport) repeat(req *http.Request, t xrpc.CallInfo) (_ *http.Response, err error) {
	defer Catch(&err)
	second := req.Clone(req.Context())
	if t.Who != nil {
		token := Must(t.Who.Token(t.Audience, t.Call.Method))
		second.Header.Set("Authorization", "Bearer "+token)
	}
	second.Body = http.NoBody
	if t.Call.Body != nil {
		second.Body = io.NopCloser(bytes.NewReader(t.Call.Body))
	}
	type outcome struct {
		resp *http.Response
		err  error
	}
	outcomes := make(chan outcome, 2)
	for _, r := range []*http.Request{req, second} {
		go func() {
			resp, err := f.wire.RoundTrip(r)
			outcomes <- outcome{resp, err}
		}()
	}
	first, other := <-outcomes, <-outcomes
	if other.err != nil {
		return first.resp, first.err
	}
	if first.err != nil {
		return other.resp, nil
	}
	if err := xrpc.Drain(other.resp); err != nil {
		return nil, errors.Join(err, xrpc.Drain(first.resp))
	}
	return first.resp, nil
}

// NextFault is a plan of one fault, for the next request of a method.
type NextFault struct {
	Method   syntax.NSID
	Fault    Fault
	happened atomic.Bool
}

// Next implements FaultPlan.
func (f *NextFault) Next(call xrpc.Call) (Fault, bool) {
	if call.Method != f.Method || f.happened.Swap(true) {
		return Fault{}, false
	}
	return f.Fault, true
}

// RandomFaults is a random plan: each request gets a fault with the given probability. The seed
// determines the sequence of faults. The order of arrival decides which request gets which fault.
type RandomFaults struct {
	mu     sync.Mutex // guards rng
	rng    *rand.Rand
	chance float64
}

// NewRandomFaults makes a random plan from a seed.
func NewRandomFaults(seed uint64, chance float64) *RandomFaults {
	return &RandomFaults{rng: rand.New(rand.NewPCG(seed, 0x5eed)), chance: chance}
}

// Next implements FaultPlan.
func (w *RandomFaults) Next(xrpc.Call) (Fault, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rng.Float64() >= w.chance {
		return Fault{}, false
	}
	kinds := []FaultKind{LoseRequest, LoseAnswer, LoseAnswer, Repeat, Repeat, Delay}
	fault := Fault{Kind: kinds[w.rng.IntN(len(kinds))]}
	if fault.Kind == Delay {
		fault.Delay = time.Duration(1+w.rng.IntN(20)) * time.Millisecond
	}
	return fault, true
}
