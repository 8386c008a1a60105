package events

import (
	"context"
	"maps"
	"weak"

	"mlsd/outbox"
)

// load loads the log entries of events that a live subscription will get, up to loadBytes. The
// readers load the entries that load leaves out.
func (h *Hub) load(ctx context.Context, batch []*Event) {
	var wanted []*Event
	left := loadBytes
	h.mu.Lock()
	for _, e := range batch {
		if e.Kind.LogEntry() && len(h.byConvo[e.ConvoID]) > 0 && e.Size <= left {
			wanted = append(wanted, e)
			left -= e.Size
		}
	}
	h.mu.Unlock()
	if err := loadEntries(ctx, h.cfg.DB, wanted); err != nil {
		h.cfg.Log.WarnContext(ctx, "log entries could not be read ahead", "error", err)
	}
}

// publish hands out the next events of the stream.
func (h *Hub) publish(batch []*Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range batch {
		h.share(e)
		switch {
		case e.Kind == outbox.Membership:
			h.publishMembership(e)
		case e.ofConvo():
			for s := range h.byConvo[e.ConvoID] {
				h.offer(s, e)
			}
		default:
			for _, s := range h.byDID[e.DID] {
				h.offer(s, e)
			}
		}
		h.head, h.day = e.StreamSeq, e.day
	}
	for _, e := range batch {
		if e.Kind.LogEntry() && len(h.byConvo[e.ConvoID]) > 0 {
			e = e.withoutEntry() // frees the log entry when its readers are done
		}
		h.memory.add(e)
	}
	h.memory.forget(h.indexed)
}

// share returns the event to use instead of e, so that memory holds a large event only once,
// however many subscriptions use it. The caller holds the hub's lock.
func (h *Hub) share(e *Event) *Event {
	if e.Size <= largeEvent {
		return e
	}
	if there := h.shared[e.StreamSeq].Value(); there != nil {
		return there
	}
	if len(h.shared) > 1000 {
		maps.DeleteFunc(h.shared, func(_ int64, p weak.Pointer[Event]) bool { return p.Value() == nil })
	}
	h.shared[e.StreamSeq] = weak.Make(e)
	return e
}

// publishMembership hands out a membership event. It adds a new member to the convo before it
// offers the event, and removes a former member after it has offered the event. So both get the
// event.
func (h *Hub) publishMembership(e *Event) {
	joined := e.Detail.Change == outbox.Joined
	for _, s := range h.byDID[e.DID] {
		if joined && s.live && e.StreamSeq > s.from {
			h.addConvo(s, e.ConvoID)
		}
	}
	for s := range h.byConvo[e.ConvoID] { // offer can remove entries from the map
		h.offer(s, e)
	}
	if joined {
		return
	}
	for _, s := range h.byDID[e.DID] {
		if s.live && e.StreamSeq > s.from {
			h.removeConvo(s, e.ConvoID)
		}
	}
}
