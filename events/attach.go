package events

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/events/outbox"
	"mlsd/events/signals"
)

// addConvo adds a convo to a live subscription, if the subscription asked for the convo's events.
func (h *Hub) addConvo(s *Subscription, convo uuid.UUID) {
	if !s.wants(convo) {
		return
	}
	here := h.byConvo[convo]
	if here == nil {
		here = map[*Subscription]struct{}{}
		h.byConvo[convo] = here
	}
	here[s] = struct{}{}
	s.convos[convo] = struct{}{}
}

// removeConvo undoes addConvo.
func (h *Hub) removeConvo(s *Subscription, convo uuid.UUID) {
	delete(s.convos, convo)
	delete(h.byConvo[convo], s)
	if len(h.byConvo[convo]) == 0 {
		delete(h.byConvo, convo)
	}
}

// offer puts an event into a live subscription's buffer. If the buffer is full, the subscription
// stops being live, and reads the table from that event on.
func (h *Hub) offer(s *Subscription, e *Event) {
	if !s.live || e.StreamSeq <= s.from || !s.wants(e.ConvoID) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 && s.queued+e.cost() > h.cfg.Buffer {
		h.detach(s)
		s.position = e.StreamSeq - 1
		if s.behind.IsZero() {
			s.behind = h.now()
		}
		h.cfg.Metrics.FellBehind()
	} else {
		s.queue = append(s.queue, e)
		s.queued += e.cost()
	}
	s.notify()
}

// detach undoes attach. It has no effect on a subscription that is not live. The caller holds the
// hub's lock and the subscription's lock.
func (h *Hub) detach(s *Subscription) {
	if !s.live {
		return
	}
	for convo := range s.convos {
		h.removeConvo(s, convo)
	}
	s.live = false
	if !s.doubted {
		s.disconnected()
	}
}

// attach makes a subscription live. The subscription has all events up to its position, and convos
// are the convos of its DID at that position. attach fails if the subscription has ended, or if the
// hub has forgotten some events after that position.
func (h *Hub) attach(s *Subscription, convos map[uuid.UUID]struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.remembers(s.position) {
		return false
	}
	s.mu.Lock()
	if s.failed != nil {
		s.mu.Unlock()
		return false
	}
	s.live, s.from, s.convos = true, s.position, map[uuid.UUID]struct{}{}
	s.mu.Unlock()
	if !s.doubted {
		s.connected()
	}
	for convo := range convos {
		h.addConvo(s, convo)
	}
	h.offerMissed(s, h.memory.after(s.position))
	return true
}

// remembers reports whether the hub remembers all events after a place. The caller holds the lock.
func (h *Hub) remembers(place int64) bool { return h.head-place <= int64(len(h.memory.events)) }

// offerMissed offers a subscription the events between its position and the head.
func (h *Hub) offerMissed(s *Subscription, missed []*Event) {
	for _, e := range missed {
		mine := e.Kind == outbox.Membership && e.DID == s.did
		if mine && e.Detail.Change == outbox.Joined {
			h.addConvo(s, e.ConvoID)
		}
		_, member := s.convos[e.ConvoID]
		if e.ofConvo() && member || !e.ofConvo() && e.DID == s.did {
			h.offer(s, h.share(e.withoutEntry()))
		}
		if mine && e.Detail.Change != outbox.Joined {
			h.removeConvo(s, e.ConvoID)
		}
		if !s.live { // the buffer was full
			return
		}
	}
}

// Live implements signals.Hub.
func (h *Hub) Live(convo uuid.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byConvo[convo])
}

// LiveDIDs implements signals.Hub.
func (h *Hub) LiveDIDs(convo uuid.UUID) (dids []syntax.DID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	here := h.byConvo[convo]
	seen := make(map[syntax.DID]struct{}, len(here))
	for s := range here {
		if _, twice := seen[s.did]; !twice {
			seen[s.did] = struct{}{}
			dids = append(dids, s.did)
		}
	}
	return dids
}

// OfferSignal implements signals.Hub. Subscriptions that get the same signal share its event.
func (h *Hub) OfferSignal(convo uuid.UUID, of func(syntax.DID) *signals.Signal) (offered, behind int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := map[*signals.Signal]*Event{}
	for s := range h.byConvo[convo] {
		signal := of(s.did)
		if signal == nil {
			continue
		}
		e := events[signal]
		if e == nil {
			e = &Event{ConvoID: signal.ConvoID, Size: len(signal.Payload), Signal: signal}
			events[signal] = e
		}
		if s.offerSignal(e) {
			offered++
		} else {
			behind++
		}
	}
	return offered, behind
}

// offerSignal puts a signal into the buffer, if at least half of the buffer is free. The caller
// holds the hub's lock.
func (s *Subscription) offerSignal(e *Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || 2*(s.queued+e.cost()) > s.hub.cfg.Buffer {
		return false
	}
	s.queue = append(s.queue, e)
	s.queued += e.cost()
	s.notify()
	return true
}
