package events

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/outbox"
)

// requests are the convos of one person that the person has not accepted. The stream says where a
// membership begins as a request. It does not say when the person accepts, because only the person
// may know that. So marks reads the roster again, at most every readRosterEvery, and only while
// events of such convos arrive.
type requests struct {
	convos map[uuid.UUID]struct{}
	upto   int64     // convos has what the stream says up to this place
	readAt time.Time // when the roster was read
	last   *Event    // event that Next returned last
}

// readRosterEvery is how long events of a convo can still be marked after the person has accepted
// the convo.
const readRosterEvery = 5 * time.Second

// set replaces the convos by the convos of the roster. The roster was read when the stream ended at
// upto or later.
func (r *requests) set(convos []uuid.UUID, upto int64) {
	r.convos, r.upto, r.readAt = nil, upto, time.Now()
	for _, c := range convos {
		r.add(c)
	}
}

func (r *requests) add(convo uuid.UUID) {
	if r.convos == nil { // most people have no requests
		r.convos = map[uuid.UUID]struct{}{}
	}
	r.convos[convo] = struct{}{}
}

// marks reports whether the last event is of a convo that the person has not accepted. If it cannot
// read the roster again, the mark stays as it was.
func (r *requests) marks(ctx context.Context, h *Hub, did syntax.DID) bool {
	e := r.last
	if e == nil || e.ConvoID == uuid.Nil {
		return false
	}
	mine := e.DID == did && (e.Kind == outbox.Membership || e.Kind == outbox.Welcome)
	switch {
	case mine && e.Detail.Request && e.StreamSeq > r.upto:
		r.add(e.ConvoID)
	case e.Kind.LogEntry() && e.Message().Sender == did: // a person who writes has accepted
		delete(r.convos, e.ConvoID)
	}
	if _, request := r.convos[e.ConvoID]; !request {
		return false
	}
	if time.Since(r.readAt) >= readRosterEvery {
		r.readAt = time.Now()
		if err := r.read(ctx, h, did); err != nil {
			h.cfg.Log.WarnContext(ctx, "the subscriber's requests could not be read", "error", err)
		}
	}
	_, request := r.convos[e.ConvoID]
	if mine && e.Detail.Change != outbox.Joined && e.Kind == outbox.Membership {
		delete(r.convos, e.ConvoID) // the person has left
	}
	return request
}

// stale reports whether marks may have to read the roster for an event.
func (r *requests) stale(did syntax.DID, e *Event) bool {
	mine := e.DID == did && e.Detail.Request
	return (mine || len(r.convos) > 0) && time.Since(r.readAt) >= readRosterEvery
}

// read reads the person's requests from the roster.
func (r *requests) read(ctx context.Context, h *Hub, did syntax.DID) error {
	upto := h.Head()
	convos, err := pgpool.Collect(ctx, h.cfg.DB, pgx.RowTo[uuid.UUID], `
		SELECT convo_id FROM members WHERE did = $1 AND left_at IS NULL AND requested_at IS NOT NULL`, did)
	if err != nil {
		return fmt.Errorf("read the subscriber's requests: %w", err)
	}
	r.set(convos, upto)
	return nil
}
