package testbed

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// ListedFaults is a plan of named faults. The next request of a method gets the first fault that is
// listed for it, once.
type ListedFaults struct {
	mu    sync.Mutex // guards steps
	steps []step
}

type step struct {
	method syntax.NSID
	fault  Fault
}

// On adds a fault for the next request of method.
func (s *ListedFaults) On(method syntax.NSID, fault Fault) *ListedFaults {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{method, fault})
	return s
}

// Next implements FaultPlan.
func (s *ListedFaults) Next(call xrpc.Call) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, step := range s.steps {
		if step.method == call.Method {
			s.steps = append(s.steps[:i:i], s.steps[i+1:]...)
			return step.fault, true
		}
	}
	return Fault{}, false
}

// Left counts the faults that did not happen yet. A scenario whose fault never happened has shown
// nothing.
func (s *ListedFaults) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.steps)
}

// RandomFaults is a random plan: each request gets a fault with the given probability. The seed
// determines the sequence of faults. Which request gets which depends on their order of arrival.
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
