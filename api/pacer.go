package api

import (
	"math/rand/v2"
	"sync"
	"time"
)

// pacer looks after the streams of one kind: it calls each of its members once in a period, from one clock, so that an idle
// stream costs no timer. The members are spread over the period.
type pacer struct {
	period time.Duration
	run    func(func()) // calls a member in a goroutine of its own: one that waits holds nobody up

	mu      sync.Mutex // guards what follows
	members [pacerSlots]map[*member]struct{}
	count   int
	ticking bool // while there are members
}

const pacerSlots = 25

type member struct{ beat func() }

func newPacer(period time.Duration, run func(func())) *pacer {
	p := &pacer{period: period, run: run}
	for i := range p.members {
		p.members[i] = map[*member]struct{}{}
	}
	return p
}

// add has beat called until remove is.
func (p *pacer) add(beat func()) (remove func()) {
	m, slot := &member{beat}, rand.IntN(pacerSlots)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[slot][m] = struct{}{}
	p.count++
	if !p.ticking {
		p.ticking = true
		go p.tick()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.members[slot], m)
		p.count--
	}
}

// tick ends once there is nobody to look after.
func (p *pacer) tick() {
	ticker := time.NewTicker(p.period / pacerSlots)
	defer ticker.Stop()
	for slot := 0; ; slot = (slot + 1) % pacerSlots {
		<-ticker.C
		if !p.call(slot) {
			return
		}
	}
}

func (p *pacer) call(slot int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticking = p.count > 0
	for m := range p.members[slot] {
		p.run(m.beat)
	}
	return p.ticking
}
