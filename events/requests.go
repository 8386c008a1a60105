package events

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events/outbox"
	"mlsd/internal/pgpool"
)

// requests are the convos of one person that it has not accepted. The stream says where a
// membership begins as a request. It does not say when the person accepts, because that is for the
// person alone. So the roster is read again, at most every readRosterEvery, and only while events
// of such convos come.
type requests struct {
	convos map[uuid.UUID]struct{}
	upto   int64     // convos has what the stream says up to here
	readAt time.Time // when the roster was read
	last   *Event    // that Next returned last
}

// readRosterEvery is how long the events of a convo can be marked after its person has accepted it.
const readRosterEvery = 5 * time.Second

// set replaces the convos by those of the roster, which was read when the stream ended at upto or
// later.
func (r *requests) set(convos []uuid.UUID, upto int64) {
	r.convos, r.upto, r.readAt = nil, upto, time.Now()
	for _, c := range convos {
		r.add(c)
	}
}

func (r *requests) add(convo uuid.UUID) {
	if r.convos == nil { // most people have none
		r.convos = map[uuid.UUID]struct{}{}
	}
	r.convos[convo] = struct{}{}
}

// Request reports whether the event that Next returned last is of a convo that the person has not
// accepted. A failure to read the roster again leaves the mark as it was.
func (s *Subscription) Request(ctx context.Context) bool {
	r, e := &s.requests, s.requests.last
	if e == nil || e.ConvoID == uuid.Nil {
		return false
	}
	mine := e.DID == s.did && (e.Kind == outbox.Membership || e.Kind == outbox.Welcome)
	switch {
	case mine && e.Detail.Request && e.StreamSeq > r.upto:
		r.add(e.ConvoID)
	case e.Kind.LogEntry() && e.Message().Sender == s.did: // a person who writes has accepted
		delete(r.convos, e.ConvoID)
	}
	if _, request := r.convos[e.ConvoID]; !request {
		return false
	}
	if time.Since(r.readAt) >= readRosterEvery {
		r.readAt = time.Now()
		if err := s.readRequests(ctx); err != nil {
			s.hub.cfg.Log.WarnContext(ctx, "the subscriber's requests could not be read", "error", err)
		}
	}
	_, request := r.convos[e.ConvoID]
	if mine && e.Detail.Change != outbox.Joined && e.Kind == outbox.Membership {
		delete(r.convos, e.ConvoID) // it has left
	}
	return request
}

// stale reports whether Request can have to read the roster for an event.
func (r *requests) stale(did syntax.DID, e *Event) bool {
	mine := e.DID == did && e.Detail.Request
	return (mine || len(r.convos) > 0) && time.Since(r.readAt) >= readRosterEvery
}

// readRequests reads the person's requests from the roster.
func (s *Subscription) readRequests(ctx context.Context) error {
	upto := s.hub.Head()
	convos, err := pgpool.Collect(ctx, s.hub.cfg.DB, pgx.RowTo[uuid.UUID], `
		SELECT convo_id FROM members WHERE did = $1 AND left_at IS NULL AND requested_at IS NOT NULL`, s.did)
	if err != nil {
		return fmt.Errorf("read the subscriber's requests: %w", err)
	}
	s.requests.set(convos, upto)
	return nil
}
