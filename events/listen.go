package events

import (
	"context"
	"fmt"
	"time"
)

// Listen has the hub and the sequencer woken by other nodes until ctx ends. Nothing depends on it but how soon they wake: both look
// for themselves as well, and are woken whenever a connection had to be made anew.
func (h *Hub) Listen(ctx context.Context, s *Sequencer) {
	for delay := 100 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, 2*time.Second) {
		began := time.Now()
		if err := h.listen(ctx, s); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "the listener failed", "error", err)
		}
		if time.Since(began) > time.Minute {
			delay = 100 * time.Millisecond
		}
		pause(ctx, delay)
	}
}

// listenCheck is how long a connection may be silent before it is asked whether it is there.
const listenCheck = 30 * time.Second

func (h *Hub) listen(ctx context.Context, s *Sequencer) error {
	pooled, err := h.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	conn := pooled.Hijack() // what listens must not go back
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := conn.Close(closing); err != nil {
			h.log.DebugContext(ctx, "the listener's connection was gone already", "error", err)
		}
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+outboxChannel+`; LISTEN `+eventsChannel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	h.Wake()
	s.Wake()
	for {
		waiting, cancel := context.WithTimeout(ctx, listenCheck)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil && n.Channel == outboxChannel:
			s.Wake()
		case err == nil:
			h.Wake()
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() != nil:
			asking, cancel := context.WithTimeout(ctx, stepTimeout)
			err := conn.Ping(asking)
			cancel()
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		default:
			return fmt.Errorf("listen: %w", err)
		}
	}
}
