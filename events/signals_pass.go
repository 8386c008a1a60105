package events

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// pass passes on the signals that are due. A busy node keeps moved cursors back for some seconds.
func (s *Signals) pass(ctx context.Context, conn *pgx.Conn, last *passed) error {
	now := s.cfg.Now()
	var signals, moves []*Signal
	if !now.Before(last.signals.Add(signalEvery)) {
		if signals = s.takeWaiting(); len(signals) > 0 {
			last.signals = now
		}
	}
	if !now.Before(last.moves.Add(movesEvery)) {
		s.dropOldMoves()
		busy := s.cfg.Busy()
		if !busy {
			moves = s.takeMoves()
		}
		if busy || len(moves) > 0 {
			last.moves = now
		}
	}
	if err := s.notify(ctx, conn, slices.Concat(signals, moves)); err != nil {
		lost := len(signals)
		for _, signal := range moves {
			lost += len(signal.Moves)
		}
		s.cfg.Metrics.SignalsDropped(DroppedOffline, lost)
		return err
	}
	s.cfg.Metrics.SignalsCarried(len(signals))
	return nil
}

// takeWaiting takes the ciphertexts that wait.
func (s *Signals) takeWaiting() (out []*Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.waiting = s.waiting, nil
	return out
}

// takeMoves takes moved cursors. If many convos have moved cursors, it takes only some of the
// convos.
func (s *Signals) takeMoves() (out []*Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for convo, moves := range s.moved {
		for part := range slices.Chunk(slices.Collect(maps.Values(moves.of)), movesOfSignal) {
			out = append(out, &Signal{ConvoID: convo, Moves: part})
		}
		s.movers -= len(moves.of)
		delete(s.moved, convo)
		if len(out) >= signalsOfMoves {
			break
		}
	}
	return out
}

// dropOldMoves drops moved cursors that have waited too long, because the node was busy.
func (s *Signals) dropOldMoves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for convo, moves := range s.moved {
		if s.cfg.Now().Sub(moves.since) >= movesLive {
			s.cfg.Metrics.SignalsDropped(DroppedBusy, len(moves.of))
			s.movers -= len(moves.of)
			delete(s.moved, convo)
		}
	}
}

// notify passes signals on to all nodes, including this node.
func (s *Signals) notify(ctx context.Context, conn *pgx.Conn, signals []*Signal) error {
	payloads, tooLong := pack(signals)
	if tooLong > 0 {
		s.cfg.Metrics.SignalsDropped(DroppedLong, tooLong)
	}
	if len(payloads) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, `SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload`, signalsChannel,
		payloads)
	return errs.Wrap(err, "notify")
}
