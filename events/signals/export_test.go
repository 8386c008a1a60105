package signals

import (
	"context"

	"mlsd/internal/pgpool"
)

// Listening reports whether the node hears signals.
func (c *Carrier) Listening() bool {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	return c.queue.online
}

// SetOnline makes the node take signals, which nobody passes on.
func (c *Carrier) SetOnline() { c.queue.setOnline(true) }

// Deliver gives a signal to the subscriptions of this node, as if it had come from another.
func (c *Carrier) Deliver(ctx context.Context, signal Signal) {
	payloads, _ := pack([]*Signal{&signal})
	c.deliver(ctx, payloads[0])
	for {
		select {
		case l := <-c.lookUps:
			c.deliverMoves(ctx, l)
		default:
			return
		}
	}
}

// LookUpNext delivers the moved cursors that wait for a look-up first.
func (c *Carrier) LookUpNext(ctx context.Context) { c.deliverMoves(ctx, <-c.lookUps) }

// Waiting is how many ciphertexts wait.
func (c *Carrier) Waiting() int { return len(c.queue.waiting) }

// Receive takes a signal with cursors as the listener does, and returns how many wait for look-ups.
func (c *Carrier) Receive(ctx context.Context, signal Signal) int {
	payloads, _ := pack([]*Signal{&signal})
	c.deliver(ctx, payloads[0])
	return len(c.lookUps)
}

// TakeMoves passes on what moved cursors are due, and returns how many cursors these are.
func (c *Carrier) TakeMoves() (n int) {
	c.queue.dropOldMoves()
	for _, signal := range c.queue.takeMoves() {
		n += len(signal.Moves)
	}
	return n
}

// PassWithoutConnection passes on what is due, over a connection that has ended.
func (c *Carrier) PassWithoutConnection(ctx context.Context) error {
	l, err := pgpool.Listen(ctx, c.cfg.DB, c.cfg.Log, `LISTEN mlsd_signals`)
	if err != nil {
		return err
	}
	l.Close(ctx)
	return c.pass(ctx, l.Conn, &passed{})
}

// Pack and Unpack are what makes payloads of NOTIFY, and reads them.
var (
	Pack   = pack
	Unpack = unpack
)
