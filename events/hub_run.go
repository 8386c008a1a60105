package events

import (
	"context"
	"slices"
	"time"

	"mlsd/internal/tracing"
	"mlsd/internal/worker"
)

// Wake makes Run read the stream now. It does not block. Any goroutine can call it.
func (h *Hub) Wake() {
	h.asked.Store(true)
	h.wake.Send()
}

// Grown says that the stream has events up to a place, or after it. If there are subscriptions, Run
// reads the events that it has not read yet. Grown does not block. Any goroutine can call it.
func (h *Hub) Grown(place int64) {
	for {
		known := h.grown.Load()
		if place <= known {
			return
		}
		if h.grown.CompareAndSwap(known, place) {
			h.wake.Send()
			return
		}
	}
}

// Run reads the stream and hands its events to the subscriptions until ctx ends.
//
// Run is not a worker.Every, because it does not wait for the next tick after a full batch or after
// an error.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(tailPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		more, err := h.round(ctx)
		if err != nil && ctx.Err() == nil {
			h.cfg.Log.WarnContext(ctx, "the end of the stream could not be read", "error", err)
			worker.Pause(ctx, tailPoll/4)
			continue
		}
		if more {
			continue
		}
		worker.Pause(ctx, min(time.Since(began), tailRest)) // every node reads a busy database less often
		h.wait(ctx, tick.C)
	}
}

// wait waits until the stream must be read. A hub without subscriptions reads only at ticks,
// because each read costs the database about as much as a step of the sequencer, on every node.
func (h *Hub) wait(ctx context.Context, tick <-chan time.Time) {
	for !h.due() {
		select {
		case <-h.wake:
		case <-tick:
			return
		case <-ctx.Done():
			return
		}
	}
}

// due reports whether the hub must read now.
func (h *Hub) due() bool {
	if h.asked.Swap(false) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all) > 0 && h.grown.Load() > h.head
}

// round reads new events and hands them out. more says that there may be more events already.
func (h *Hub) round(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	select {
	case <-h.started:
	default:
		if err := h.start(ctx); err != nil {
			return false, err
		}
	}
	if err := h.checkServer(ctx); err != nil {
		return false, err
	}
	h.grown.Store(0)
	batch, continues, err := h.read(ctx)
	if err != nil {
		return false, err
	}
	if !continues {
		return true, h.startAgain(ctx)
	}
	if len(batch) == 0 {
		return false, nil
	}
	if batch[0].StreamSeq != h.head+1 { // partitions were dropped while this node did not run
		s, err := readStream(ctx, h.cfg.DB)
		if err != nil {
			return false, err
		}
		return true, h.jump(ctx, s)
	}
	for part := range slices.Chunk(batch, tailLimit) {
		spans := h.trace(ctx, part)
		h.load(ctx, part)
		h.publish(part)
		for _, s := range spans {
			s.End()
		}
		h.cfg.Metrics.Published(len(part), h.lag(part[len(part)-1]))
	}
	return len(batch) >= tailLimit, nil
}

// lag returns the age of an event that was handed out. It is 0 if nobody subscribes, because the
// hub does not read events at once without subscribers.
func (h *Hub) lag(e *Event) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 {
		return 0
	}
	return time.Since(e.At)
}

// trace begins the spans of events whose writers are traced.
func (h *Hub) trace(ctx context.Context, batch []*Event) (spans []tracing.Span) {
	for _, e := range batch {
		if !e.Kind.LogEntry() {
			continue
		}
		_, span := tracing.Follow(ctx, "event", h.cfg.Tracer.WriterOf(e.ConvoID, e.Seq))
		if !span.Traced() {
			continue
		}
		h.mu.Lock()
		span.Number("event.subscriptions", len(h.byConvo[e.ConvoID]))
		h.mu.Unlock()
		spans = append(spans, span)
	}
	return spans
}
