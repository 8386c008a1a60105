package api

import (
	"math/rand/v2"
	"sync"
	"time"
)

// heartbeats calls a function of each stream once in a period. All streams share one ticker, so
// that an idle stream costs no timer. The calls are spread over the period.
type heartbeats struct {
	period time.Duration
	run    func(func()) // runs a function in its own goroutine, so that a slow one delays no other

	mu      sync.Mutex // guards what follows
	beats   [heartbeatSlots]map[*heartbeat]struct{}
	count   int
	ticking bool // while there are streams
}

// heartbeatSlots is the number of ticks in a period. A stream is called in one of them.
const heartbeatSlots = 25

type heartbeat struct{ beat func() }

func newHeartbeats(period time.Duration, run func(func())) *heartbeats {
	h := &heartbeats{period: period, run: run}
	for i := range h.beats {
		h.beats[i] = map[*heartbeat]struct{}{}
	}
	return h
}

// add calls beat once in a period until remove is called.
func (h *heartbeats) add(beat func()) (remove func()) {
	b, slot := &heartbeat{beat}, rand.IntN(heartbeatSlots)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats[slot][b] = struct{}{}
	h.count++
	if !h.ticking {
		h.ticking = true
		go h.tick()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.beats[slot], b)
		h.count--
	}
}

// tick returns when no stream is left.
func (h *heartbeats) tick() {
	ticker := time.NewTicker(h.period / heartbeatSlots)
	defer ticker.Stop()
	for slot := 0; ; slot = (slot + 1) % heartbeatSlots {
		<-ticker.C
		if !h.call(slot) {
			return
		}
	}
}

// call calls the streams of one slot and reports whether any stream is left.
func (h *heartbeats) call(slot int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticking = h.count > 0
	for b := range h.beats[slot] {
		h.run(b.beat)
	}
	return h.ticking
}
