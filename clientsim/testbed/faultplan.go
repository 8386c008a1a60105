package testbed

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// NextFault is a plan of one fault: that of the next request of a method.
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
