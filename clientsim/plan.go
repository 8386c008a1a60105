package clientsim

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Script is a plan of named accidents: the next request of a method meets the
// first fault that waits for it, once.
type Script struct {
	mu    sync.Mutex // guards steps
	steps []step
}

type step struct {
	method syntax.NSID
	fault  Fault
}

// On adds a fault for the next request of method.
func (s *Script) On(method syntax.NSID, fault Fault) *Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{method, fault})
	return s
}

// Next implements Plan.
func (s *Script) Next(call Call) (Fault, bool) {
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

// Left counts the faults that have not happened: a scenario whose accident
// never came has shown nothing.
func (s *Script) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.steps)
}

// Weather is a plan at random: each request meets a fault with the given
// probability. The sequence of faults follows from the seed; which request
// meets which depends on the order in which they arrive.
type Weather struct {
	mu     sync.Mutex // guards rng and tally
	rng    *rand.Rand
	chance float64
	tally  map[FaultKind]int
}

// NewWeather makes weather from a seed.
func NewWeather(seed uint64, chance float64) *Weather {
	return &Weather{rng: rand.New(rand.NewPCG(seed, 0x5eed)), chance: chance, tally: map[FaultKind]int{}}
}

// Next implements Plan.
func (w *Weather) Next(Call) (Fault, bool) {
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
	w.tally[fault.Kind]++
	return fault, true
}
