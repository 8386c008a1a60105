package signals

import (
	"context"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// deliver gives the signals of a notification to the subscriptions of this node.
func (c *Carrier) deliver(ctx context.Context, payload string) {
	signals, err := unpack(payload)
	if err != nil {
		c.cfg.Log.ErrorContext(ctx, "a signal cannot be read", "error", err)
		return
	}
	for _, signal := range signals {
		subscriptions := c.cfg.Hub.Live(signal.ConvoID)
		switch {
		case subscriptions == 0:
		case c.cfg.Busy():
			c.cfg.Metrics.Dropped(DroppedBusy, subscriptions)
		case !c.offers.AllowN(c.cfg.Now(), min(subscriptions, offersOfNode)):
			c.cfg.Metrics.Dropped(DroppedRate, subscriptions)
		case len(signal.Moves) > 0:
			select {
			case c.lookUps <- lookUp{signal, subscriptions}:
			default:
				c.cfg.Metrics.Dropped(DroppedRate, subscriptions)
			}
		default:
			c.deliverPayload(signal)
		}
	}
}

// deliverPayload gives a ciphertext to all members who are connected here, except members who have
// blocked its sender.
func (c *Carrier) deliverPayload(signal *Signal) {
	c.count(c.cfg.Hub.OfferSignal(signal.ConvoID, func(did syntax.DID) *Signal {
		if slices.Contains(signal.Hidden, did) {
			return nil
		}
		return signal
	}))
}

// lookUp is a signal with cursors. The node must look up who sees these cursors.
type lookUp struct {
	signal        *Signal
	subscriptions int // subscriptions of the members who are connected here
}

// runLookUps delivers moved cursors until ctx ends.
func (c *Carrier) runLookUps(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			c.dropLookUps()
			return
		case l := <-c.lookUps:
			c.deliverMoves(ctx, l)
		}
	}
}

// dropLookUps drops the signals that wait for a look-up.
func (c *Carrier) dropLookUps() {
	for {
		select {
		case l := <-c.lookUps:
			c.cfg.Metrics.Dropped(DroppedFailed, l.subscriptions)
		default:
			return
		}
	}
}

// deliverMoves gives moved cursors to the people who see them. If a look-up fails, it also drops
// the signals that wait for a look-up, because the database is busy.
func (c *Carrier) deliverMoves(ctx context.Context, l lookUp) {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	viewers := c.cfg.Hub.LiveDIDs(l.signal.ConvoID)
	see, err := c.cfg.Viewers(ctx, l.signal.ConvoID, l.signal.movers(), viewers)
	if err != nil {
		c.cfg.Log.WarnContext(ctx, "it could not be looked up who sees cursors", "error", err)
		c.cfg.Metrics.Dropped(DroppedFailed, l.subscriptions)
		c.dropLookUps()
		return
	}
	// Usually, every viewer sees all of the cursors. Such viewers share one signal, and its event.
	seen := map[syntax.DID]*Signal{}
	for _, viewer := range viewers {
		moves := slices.DeleteFunc(slices.Clone(l.signal.Moves), func(m Move) bool { return !see(viewer, m.DID) })
		switch len(moves) {
		case 0:
		case len(l.signal.Moves):
			seen[viewer] = l.signal
		default:
			seen[viewer] = &Signal{ConvoID: l.signal.ConvoID, Moves: moves}
		}
	}
	c.count(c.cfg.Hub.OfferSignal(l.signal.ConvoID, func(did syntax.DID) *Signal { return seen[did] }))
}

func (c *Carrier) count(offered, behind int) {
	c.cfg.Metrics.Delivered(offered)
	if behind > 0 {
		c.cfg.Metrics.Dropped(DroppedBehind, behind)
	}
}
