package signals

import (
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Busy reports whether the node drops signals now. If it does, Busy counts one dropped signal. A
// caller asks Busy before it does any work for a signal.
func (c *Carrier) Busy() bool {
	if !c.cfg.Busy() {
		return false
	}
	c.cfg.Metrics.Dropped(DroppedBusy, 1)
	return true
}

// Send passes on a ciphertext that its sender may send. It returns false if this node drops the
// ciphertext. It does not block.
func (c *Carrier) Send(signal Signal) bool {
	reason := c.take(&signal)
	if reason != "" {
		c.cfg.Metrics.Dropped(reason, 1)
	}
	return reason == ""
}

// take queues a ciphertext, or returns why the ciphertext is dropped.
func (c *Carrier) take(signal *Signal) (reason string) {
	if _, ok := c.ofCaller.Take(signal.Sender, signalsOfCaller, 1); !ok {
		return DroppedRate
	}
	if _, ok := c.ofConvo.Take(signal.ConvoID, signalsOfConvo, 1); !ok {
		return DroppedConvo
	}
	if !c.taken.AllowN(c.cfg.Now(), 1) {
		return DroppedRate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.online:
		return DroppedOffline
	case len(c.waiting) >= signalsWaiting:
		return DroppedRate
	case signal.Nobody:
		return ""
	case len(c.waiting) == 0:
		c.wake()
	}
	c.waiting = append(c.waiting, signal)
	return ""
}

// Moved tells the members who may see a cursor that the cursor has moved. Several moves of one
// cursor become one move. Moved does not block.
func (c *Carrier) Moved(convo uuid.UUID, m Move) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.moved[convo]
	if waiting == nil {
		waiting = &convoMoves{since: c.cfg.Now(), of: map[syntax.DID]Move{}}
	}
	before, again := waiting.of[m.DID]
	if !again {
		if c.movers >= movesWaiting {
			c.cfg.Metrics.Dropped(DroppedRate, 1)
			return
		}
		if c.movers++; c.movers == 1 {
			c.wake()
		}
	}
	m.Read, m.Delivered = max(m.Read, before.Read), max(m.Delivered, before.Delivered)
	waiting.of[m.DID] = m
	c.moved[convo] = waiting
}

// convoMoves are the moved cursors of a convo.
type convoMoves struct {
	since time.Time // when the first cursor moved
	of    map[syntax.DID]Move
}

// wake ends the wait of Run. The caller holds the lock.
func (c *Carrier) wake() {
	if c.interrupt != nil {
		c.interrupt()
		c.interrupt = nil
	}
}
