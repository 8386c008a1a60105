package events

import (
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// deliver gives the signals of a notification to the subscriptions of this node.
func (s *Signals) deliver(ctx context.Context, payload string) {
	signals, err := unpack(payload)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "a signal cannot be read", "error", err)
		return
	}
	for _, signal := range signals {
		subscriptions := s.cfg.Hub.live(signal.ConvoID)
		switch {
		case subscriptions == 0:
		case s.cfg.Busy():
			s.cfg.Metrics.SignalsDropped(DroppedBusy, subscriptions)
		case !s.offers.AllowN(s.cfg.Now(), min(subscriptions, offersOfNode)):
			s.cfg.Metrics.SignalsDropped(DroppedRate, subscriptions)
		case len(signal.Moves) > 0:
			select {
			case s.lookUps <- lookUp{signal, subscriptions}:
			default:
				s.cfg.Metrics.SignalsDropped(DroppedRate, subscriptions)
			}
		default:
			s.deliverPayload(signal)
		}
	}
}

// deliverPayload gives a ciphertext to all members who are connected here, except members who have
// blocked its sender.
func (s *Signals) deliverPayload(signal *Signal) {
	e := signal.event()
	s.count(s.cfg.Hub.offerSignal(signal.ConvoID, func(did syntax.DID) *Event {
		if slices.Contains(signal.Hidden, did) {
			return nil
		}
		return e
	}))
}

// lookUp is a signal with cursors. The node must look up who sees these cursors.
type lookUp struct {
	signal        *Signal
	subscriptions int // subscriptions of the members who are connected here
}

// runLookUps delivers moved cursors until ctx ends.
func (s *Signals) runLookUps(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.dropLookUps()
			return
		case l := <-s.lookUps:
			s.deliverMoves(ctx, l)
		}
	}
}

// dropLookUps drops the signals that wait for a look-up.
func (s *Signals) dropLookUps() {
	for {
		select {
		case l := <-s.lookUps:
			s.cfg.Metrics.SignalsDropped(DroppedFailed, l.subscriptions)
		default:
			return
		}
	}
}

// deliverMoves gives moved cursors to the people who see them. If a look-up fails, it also drops
// the signals that wait for a look-up, because the database is busy.
func (s *Signals) deliverMoves(ctx context.Context, l lookUp) {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	viewers := s.cfg.Hub.liveDIDs(l.signal.ConvoID)
	see, err := s.cfg.Viewers(ctx, l.signal.ConvoID, l.signal.movers(), viewers)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "it could not be looked up who sees cursors", "error", err)
		s.cfg.Metrics.SignalsDropped(DroppedFailed, l.subscriptions)
		s.dropLookUps()
		return
	}
	// Usually, every viewer sees all of the cursors. Such viewers share one event.
	all, seen := l.signal.event(), map[syntax.DID]*Event{}
	for _, viewer := range viewers {
		moves := slices.DeleteFunc(slices.Clone(l.signal.Moves), func(m Move) bool { return !see(viewer, m.DID) })
		switch len(moves) {
		case 0:
		case len(l.signal.Moves):
			seen[viewer] = all
		default:
			seen[viewer] = (&Signal{ConvoID: l.signal.ConvoID, Moves: moves}).event()
		}
	}
	s.count(s.cfg.Hub.offerSignal(l.signal.ConvoID, func(did syntax.DID) *Event { return seen[did] }))
}

func (s *Signals) count(offered, behind int) {
	s.cfg.Metrics.SignalsDelivered(offered)
	if behind > 0 {
		s.cfg.Metrics.SignalsDropped(DroppedBehind, behind)
	}
}

// live returns the number of live subscriptions that members of a convo have here.
func (h *Hub) live(convo uuid.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byConvo[convo])
}

// liveDIDs returns the members of a convo that have live subscriptions here.
func (h *Hub) liveDIDs(convo uuid.UUID) (dids []syntax.DID) {
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

// offerSignal offers an event to each live subscription of a convo. of returns the event for a
// person, or nil. offered is the number of subscriptions that took the event. behind is the number
// of subscriptions that did not take it, because their buffers are more than half full.
func (h *Hub) offerSignal(convo uuid.UUID, of func(syntax.DID) *Event) (offered, behind int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.byConvo[convo] {
		e := of(s.did)
		if e == nil {
			continue
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
