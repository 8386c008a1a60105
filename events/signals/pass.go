package signals

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// pass passes on the signals that are due. A busy node keeps moved cursors back for some seconds.
func (c *Carrier) pass(ctx context.Context, conn *pgx.Conn, last *passed) error {
	now := c.cfg.Now()
	var signals, moves []*Signal
	if !now.Before(last.signals.Add(signalEvery)) {
		if signals = c.takeWaiting(); len(signals) > 0 {
			last.signals = now
		}
	}
	if !now.Before(last.moves.Add(movesEvery)) {
		c.dropOldMoves()
		busy := c.cfg.Busy()
		if !busy {
			moves = c.takeMoves()
		}
		if busy || len(moves) > 0 {
			last.moves = now
		}
	}
	if err := c.notify(ctx, conn, slices.Concat(signals, moves)); err != nil {
		lost := len(signals)
		for _, signal := range moves {
			lost += len(signal.Moves)
		}
		c.cfg.Metrics.Dropped(DroppedOffline, lost)
		return err
	}
	c.cfg.Metrics.Carried(len(signals))
	return nil
}

// takeWaiting takes the ciphertexts that wait.
func (c *Carrier) takeWaiting() (out []*Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, c.waiting = c.waiting, nil
	return out
}

// takeMoves takes moved cursors. If many convos have moved cursors, it takes only some of the
// convos.
func (c *Carrier) takeMoves() (out []*Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for convo, moves := range c.moved {
		for part := range slices.Chunk(slices.Collect(maps.Values(moves.of)), movesOfSignal) {
			out = append(out, &Signal{ConvoID: convo, Moves: part})
		}
		c.movers -= len(moves.of)
		delete(c.moved, convo)
		if len(out) >= signalsOfMoves {
			break
		}
	}
	return out
}

// dropOldMoves drops moved cursors that have waited too long, because the node was busy.
func (c *Carrier) dropOldMoves() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for convo, moves := range c.moved {
		if c.cfg.Now().Sub(moves.since) >= movesLive {
			c.cfg.Metrics.Dropped(DroppedBusy, len(moves.of))
			c.movers -= len(moves.of)
			delete(c.moved, convo)
		}
	}
}

// notify passes signals on to all nodes, including this node.
func (c *Carrier) notify(ctx context.Context, conn *pgx.Conn, signals []*Signal) error {
	payloads, tooLong := pack(signals)
	if tooLong > 0 {
		c.cfg.Metrics.Dropped(DroppedLong, tooLong)
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
