package events

import (
	"context"
	"time"
)

// KeepEvents is how many of the newest events a hub remembers.
const KeepEvents = keepEvents

// Ahead has the sequencer live that much later than the database, and look after its partitions anew.
func (s *Sequencer) Ahead(d time.Duration) { s.ahead, s.upkeepDue = d, time.Time{} }

// Round is one round of the sequencer's.
func (s *Sequencer) Round(ctx context.Context) (bool, error) {
	moved, err := s.round(ctx, true)
	return moved > 0, err
}

// Resign gives up the lead.
func (s *Sequencer) Resign() { s.resign() }

// Leads reports whether this node leads.
func (s *Sequencer) Leads() bool { return s.conn != nil }

// TryNow has the next round try to lead.
func (s *Sequencer) TryNow() { s.tried = time.Time{} }

// Round is one round of the hub's.
func (h *Hub) Round(ctx context.Context) (bool, error) { return h.round(ctx) }

// Forget has the hub know nothing of what it has handed out.
func (h *Hub) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent = nil
}

// Live reports whether the hub hands the subscription its events.
func (s *Subscription) Live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// LookNow has the next empty round look whether the stream has gone back.
func (h *Hub) LookNow() { h.looked = time.Time{} }
