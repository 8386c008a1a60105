package events

import (
	"context"
	"strconv"
	"time"

	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// Listen wakes a hub and a sequencer when another node notifies them, until ctx ends. It also wakes
// them after each new connection. Without Listen both would still work, because both also read
// without a wake-up, but they would work later.
func Listen(ctx context.Context, h *Hub, s *Sequencer) {
	for delay := 100 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, 2*time.Second) {
		began := time.Now()
		if err := listen(ctx, h, s); err != nil && ctx.Err() == nil {
			h.cfg.Log.WarnContext(ctx, "the listener failed", "error", err)
		}
		if time.Since(began) > time.Minute {
			delay = 100 * time.Millisecond
		}
		worker.Pause(ctx, delay)
	}
}

func listen(ctx context.Context, h *Hub, s *Sequencer) error {
	l, err := pgpool.Listen(ctx, h.cfg.DB, h.cfg.Log, `LISTEN mlsd_outbox; LISTEN mlsd_events; LISTEN mlsd_devices`)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	h.Wake()
	s.Wake()
	for {
		n, err := l.Next(ctx, pgpool.ListenCheck)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case n == nil:
			if err := l.Ping(ctx); err != nil {
				return err
			}
		case n.Channel == outboxChannel:
			s.wakeLeading()
		case n.Channel == devicesChannel:
			h.endDevice(n.Payload)
		default:
			notified(Stream{h, s}, n.Payload)
		}
	}
}

// notified handles a notification of the stream. The payload is the place up to which the stream
// has grown, or empty if the stream has a new generation.
func notified(s Stream, payload string) {
	place, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		s.Hub.Wake()
		return
	}
	s.grown(place)
}
