package events

import (
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// deliver gives the signals of a notification to the subscriptions of this node.
func (s *Signals) deliver(ctx context.Context, payload string) {
	signals, err := unpack(payload)
	if err != nil {
		s.log.ErrorContext(ctx, "a signal cannot be read", "error", err)
		return
	}
	for _, signal := range signals {
		viewers, subscriptions := s.hub.liveDIDs(signal.ConvoID)
		switch {
		case subscriptions == 0:
		case s.busy():
			s.metrics.SignalsDropped(DroppedBusy, subscriptions)
		case !s.frames.AllowN(s.now(), min(subscriptions, framesOfNode)):
			s.metrics.SignalsDropped(DroppedRate, subscriptions)
		case len(signal.Moves) > 0:
			select {
			case s.looked <- lookUp{signal, viewers}:
			default:
				s.metrics.SignalsDropped(DroppedRate, subscriptions)
			}
		default:
			s.deliverPayload(signal)
		}
	}
}

func (s *Signals) deliverPayload(signal *Signal) {
	e := signal.event()
	s.count(s.hub.offerSignal(signal.ConvoID, func(did syntax.DID) *Event {
		if slices.Contains(signal.Hidden, did) {
			return nil
		}
		return e
	}))
}

// lookUp is a signal with cursors, and the members who are connected here.
type lookUp struct {
	signal  *Signal
	viewers []syntax.DID
}

// lookUp delivers moved cursors until ctx ends. After a failure it drops all that wait: the database
// has other things to do.
func (s *Signals) lookUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.dropLookUps()
			return
		case l := <-s.looked:
			s.lookUpOne(ctx, l)
		}
	}
}

func (s *Signals) lookUpOne(ctx context.Context, l lookUp) {
	if !s.deliverMoves(ctx, l.signal, l.viewers) {
		s.dropLookUps()
	}
}

// dropLookUps drops the moved cursors that wait.
func (s *Signals) dropLookUps() {
	for {
		select {
		case l := <-s.looked:
			s.metrics.SignalsDropped(DroppedFailed, len(l.viewers))
		default:
			return
		}
	}
}

// deliverMoves gives moved cursors to those who see them, and reports whether that could be looked
// up. Nearly always all who share theirs see all, and share one event.
func (s *Signals) deliverMoves(ctx context.Context, signal *Signal, viewers []syntax.DID) bool {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	see, err := s.viewers(ctx, signal.ConvoID, signal.movers(), viewers)
	if err != nil {
		s.log.WarnContext(ctx, "it could not be looked up who sees cursors", "error", err)
		s.metrics.SignalsDropped(DroppedFailed, len(viewers))
		return false
	}
	all, part := signal.event(), map[syntax.DID]*Event{}
	for _, viewer := range viewers {
		seen := make([]Move, 0, len(signal.Moves))
		for _, m := range signal.Moves {
			if see(viewer, m.DID) {
				seen = append(seen, m)
			}
		}
		switch len(seen) {
		case 0:
		case len(signal.Moves):
			part[viewer] = all
		default:
			part[viewer] = (&Signal{ConvoID: signal.ConvoID, Moves: seen}).event()
		}
	}
	s.count(s.hub.offerSignal(signal.ConvoID, func(did syntax.DID) *Event { return part[did] }))
	return true
}

func (s *Signals) count(offered, behind int) {
	s.metrics.SignalsDelivered(offered)
	if behind > 0 {
		s.metrics.SignalsDropped(DroppedBehind, behind)
	}
}
