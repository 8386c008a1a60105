package network

import (
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// allCalls bounds the simultaneous calls of one node; perHome bounds the simultaneous calls of
	// one service.
	allCalls = 32
	perHome  = 4
	// unproven bounds the simultaneous calls of services whose last call failed, or that were never
	// called. Each such service has one call at a time. So places remain for services that always
	// answer.
	unproven = allCalls / 2
	// maxHomes bounds the services that a node remembers. A forgotten service counts as never
	// called.
	maxHomes = 8192

	// A service that does not answer is not called for some time. This time doubles with each
	// failure.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// home is what a node knows of a service that it calls.
type home struct {
	running  int
	proven   bool      // the last call was answered
	failures int       // number of unanswered calls in a row
	until    time.Time // the service is not called before this time
}

// homes know which services can be called now. Methods are safe for concurrent use.
type homes struct {
	now    func() time.Time
	jitter func(time.Duration) time.Duration

	mu       sync.Mutex // guards the fields below
	byDID    *simplelru.LRU[syntax.DID, *home]
	running  int
	unproven int // number of unproven calls in running
}

func newHomes(now func() time.Time, jitter func(time.Duration) time.Duration) *homes {
	byDID, err := simplelru.NewLRU[syntax.DID, *home](maxHomes, nil)
	if err != nil {
		panic(err) // maxHomes is positive
	}
	return &homes{now: now, jitter: jitter, byDID: byDID}
}

// acquire takes a place for a call of a service. proven says how the call counts until release is
// called.
func (h *homes) acquire(did syntax.DID) (proven, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, known := h.byDID.Get(did)
	if !known {
		of = &home{}
	}
	switch {
	case h.running >= allCalls, of.running >= perHome, h.now().Before(of.until):
		return false, false
	case !of.proven && (of.running > 0 || h.unproven >= unproven):
		return false, false
	}
	if !known { // remembered only now, so that services that wait for a place do not make the node forget others
		h.byDID.Add(did, of)
	}
	of.running++
	h.running++
	if !of.proven {
		h.unproven++
	}
	return of.proven, true
}

// release returns a place. called says whether the service was called, and answered whether it
// answered.
func (h *homes) release(did syntax.DID, proven, called, answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if !proven {
		h.unproven--
	}
	of, known := h.byDID.Get(did)
	if !known {
		return
	}
	of.running = max(0, of.running-1)
	switch {
	case !called:
	case answered:
		of.proven, of.failures, of.until = true, 0, time.Time{}
	default:
		of.proven = false
		pause := min(firstPause<<min(of.failures, 16), lastPause)
		of.failures++
		of.until = h.now().Add(pause/2 + h.jitter(pause/2))
	}
}

// proven returns the services whose last call was answered.
func (h *homes) proven() []syntax.DID {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []syntax.DID{}
	for _, did := range h.byDID.Keys() {
		if of, _ := h.byDID.Peek(did); of.proven {
			all = append(all, did)
		}
	}
	return all
}

// paused returns the services that are not called now.
func (h *homes) paused() []syntax.DID {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []syntax.DID{}
	for _, did := range h.byDID.Keys() {
		of, _ := h.byDID.Peek(did)
		if h.now().Before(of.until) || of.running >= perHome || !of.proven && of.running > 0 {
			all = append(all, did)
		}
	}
	return all
}
