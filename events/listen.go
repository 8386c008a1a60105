package events

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Listen wakes the hub and the sequencer when another node notifies them, until ctx ends. Without
// it both would only be later, because both also read without a wake-up. Listen wakes them after
// each new connection as well.
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

const (
	listenCheck = 30 * time.Second // how long a connection can be silent until it is pinged
	listenBegin = 3 * time.Second  // to get a connection and to begin to listen
)

func (h *Hub) listen(ctx context.Context, s *Sequencer) error {
	beginning, cancel := context.WithTimeout(ctx, listenBegin)
	defer cancel()
	pooled, err := h.db.Acquire(beginning)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	conn := pooled.Hijack() // a listening connection must not return to the pool
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := conn.Close(closing); err != nil {
			h.log.DebugContext(ctx, "the listener's connection was closed already", "error", err)
		}
	}()
	if _, err := conn.Exec(beginning, `LISTEN mlsd_outbox; LISTEN mlsd_events; LISTEN mlsd_devices`); err != nil {
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
			s.wakeLeading()
		case err == nil && n.Channel == devicesChannel:
			h.endDevice(n.Payload)
		case err == nil:
			h.notified(n.Payload)
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() != nil:
			pinging, cancel := context.WithTimeout(ctx, stepTimeout)
			err := conn.Ping(pinging)
			cancel()
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		default:
			return fmt.Errorf("listen: %w", err)
		}
	}
}

// notified takes a notification of the stream: the place up to which it has grown, or nothing if it
// has a new generation.
func (h *Hub) notified(payload string) {
	place, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		h.Wake()
		return
	}
	h.Grown(place)
}
