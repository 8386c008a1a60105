package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// FaultKind is what the network does to one request.
type FaultKind string

const (
	// LoseRequest: the request never reaches the server.
	LoseRequest FaultKind = "lose-request"
	// LoseAnswer: the server answers and the client never hears it.
	LoseAnswer FaultKind = "lose-answer"
	// Repeat: the request arrives twice at once, the second time with a fresh
	// token; the client hears the first answer.
	Repeat FaultKind = "repeat"
	// Delay: the request arrives late.
	Delay FaultKind = "delay"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Kind  FaultKind
	Delay time.Duration
	// Then runs when the server has answered and before the client hears of
	// it: the place to kill the server or to move the epoch.
	Then func(context.Context) error
}

// Plan decides what goes wrong. Next is called once per request, concurrently.
type Plan interface {
	Next(Call) (Fault, bool)
}

// errLost is what a phone sees when a packet did not come through.
var errLost = errors.New("clientsim: the network lost it")

// Faulty is a RoundTripper that does to each request what its plan says.
type Faulty struct {
	wire http.RoundTripper

	mu   sync.Mutex // guards plan
	plan Plan
}

// NewFaulty puts faults in front of wire; with no plan it is transparent.
func NewFaulty(wire http.RoundTripper) *Faulty { return &Faulty{wire: wire} }

// Use sets the plan; nil ends all faults.
func (f *Faulty) Use(p Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
}

func (f *Faulty) next(call Call) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan == nil {
		return Fault{}, false
	}
	return f.plan.Next(call)
}

// RoundTrip implements http.RoundTripper.
func (f *Faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	trip, ok := tripFrom(req.Context())
	if !ok {
		return f.wire.RoundTrip(req)
	}
	fault, ok := f.next(trip.call)
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
		resp, err := f.wire.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		if err := swallow(resp); err != nil {
			return nil, err
		}
		if fault.Then != nil {
			if err := fault.Then(req.Context()); err != nil {
				return nil, err
			}
		}
		return nil, errLost
	}
	return nil, fmt.Errorf("clientsim: unknown fault %q", fault.Kind)
}

// repeat sends req twice at once and returns the first answer. The other one
// is awaited as well, so that the ledger has seen both before the client goes
// on and a scenario's end is the end of its requests.
func (f *Faulty) repeat(req *http.Request, t trip) (*http.Response, error) {
	token, err := t.who.Token(t.audience, t.call.Method)
	if err != nil {
		return nil, err
	}
	second := req.Clone(req.Context())
	second.Header.Set("Authorization", "Bearer "+token)
	second.Body = http.NoBody
	if t.call.Body != nil {
		second.Body = io.NopCloser(bytes.NewReader(t.call.Body))
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
	if err := swallow(other.resp); err != nil {
		return nil, errors.Join(err, swallow(first.resp))
	}
	return first.resp, nil
}

func swallow(resp *http.Response) error {
	_, err := io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// trip is what the transports must know of a request beyond its HTTP form.
type trip struct {
	call     Call
	who      *Account
	audience string
}

type tripKey struct{}

func withTrip(ctx context.Context, t trip) context.Context {
	return context.WithValue(ctx, tripKey{}, t)
}

func tripFrom(ctx context.Context) (trip, bool) {
	t, ok := ctx.Value(tripKey{}).(trip)
	return t, ok
}
