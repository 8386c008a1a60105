package events

import (
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Busy reports whether the node drops signals now. If it does, Busy counts one dropped signal. A
// caller asks Busy before it does any work for a signal.
func (s *Signals) Busy() bool {
	if !s.cfg.Busy() {
		return false
	}
	s.cfg.Metrics.SignalsDropped(DroppedBusy, 1)
	return true
}

// Send passes on a ciphertext that its sender may send. It returns false if this node drops the
// ciphertext. It does not block.
func (s *Signals) Send(signal Signal) bool {
	reason := s.take(&signal)
	if reason != "" {
		s.cfg.Metrics.SignalsDropped(reason, 1)
	}
	return reason == ""
}

// take queues a ciphertext, or returns why the ciphertext is dropped.
func (s *Signals) take(signal *Signal) (reason string) {
	if _, ok := s.ofCaller.Take(signal.Sender, signalsOfCaller, 1); !ok {
		return DroppedRate
	}
	if _, ok := s.ofConvo.Take(signal.ConvoID, signalsOfConvo, 1); !ok {
		return DroppedConvo
	}
	if !s.taken.AllowN(s.cfg.Now(), 1) {
		return DroppedRate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.online:
		return DroppedOffline
	case len(s.waiting) >= signalsWaiting:
		return DroppedRate
	case signal.Nobody:
		return ""
	case len(s.waiting) == 0:
		s.wake()
	}
	s.waiting = append(s.waiting, signal)
	return ""
}

// Moved tells the members who may see a cursor that the cursor has moved. Several moves of one
// cursor become one move. Moved does not block.
func (s *Signals) Moved(convo uuid.UUID, m Move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.moved[convo]
	if waiting == nil {
		waiting = &convoMoves{since: s.cfg.Now(), of: map[syntax.DID]Move{}}
	}
	before, again := waiting.of[m.DID]
	if !again {
		if s.movers >= movesWaiting {
			s.cfg.Metrics.SignalsDropped(DroppedRate, 1)
			return
		}
		if s.movers++; s.movers == 1 {
			s.wake()
		}
	}
	m.Read, m.Delivered = max(m.Read, before.Read), max(m.Delivered, before.Delivered)
	waiting.of[m.DID] = m
	s.moved[convo] = waiting
}

// convoMoves are the moved cursors of a convo.
type convoMoves struct {
	since time.Time // when the first cursor moved
	of    map[syntax.DID]Move
}

// wake ends the wait of Run. The caller holds the lock.
func (s *Signals) wake() {
	if s.interrupt != nil {
		s.interrupt()
		s.interrupt = nil
	}
}
