package sessions

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

const (
	// keyOverlap is how much further than the last round a round looks back for replaced keys of
	// accounts. A transaction that was still running has an earlier time. A session can also be
	// stored after the key that it was bought with was replaced.
	keyOverlap = 30 * time.Second
	// firstLook is how far the first round looks back. All older bearers have expired.
	firstLook = 2 * bearerLife
)

// Load reads the keys, and which sessions have ended. The first node makes the first key. Another
// call of Load reads everything again.
func (s *Service) Load(ctx context.Context) error {
	if err := s.Rotate(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.read, s.version = time.Time{}, 0
	s.mu.Unlock()
	return s.RunOnce(ctx)
}

// RunOnce ends sessions whose account has another key, and reads what has changed since the last
// call. Only one call runs at a time.
func (s *Service) RunOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	began := s.cfg.Now()
	s.mu.RLock()
	since, last := s.version, s.read
	s.mu.RUnlock()
	look := firstLook
	if !last.IsZero() {
		look = keyOverlap + began.Sub(last)
	}
	version, err := s.endReplaced(ctx, look)
	switch {
	case err != nil:
		return err
	case version == since && !last.IsZero():
		s.heard(began)
		return nil
	case version < since:
		s.cfg.Log.ErrorContext(ctx,
			"the sessions of the database are older than those that this node has read: all sessions end",
			"version", version, "read", since)
		if err := replaceKeys(ctx, s.cfg.DB, &since); err != nil {
			return err
		}
		s.endWatched()
		return s.Load(ctx)
	}
	found, err := s.readKeys(ctx)
	if err != nil {
		return err
	}
	ended, err := s.readEnded(ctx, since)
	if err != nil {
		return err
	}
	s.apply(found, ended, since, version)
	s.heard(began)
	return nil
}

// heard records that the node knows everything up to began.
func (s *Service) heard(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = began
}

// readEnded reads the sessions that have ended since a version, and until when their bearers could
// be valid. It reads at most one more session than the node remembers.
func (s *Service) readEnded(ctx context.Context, since int64) (map[uuid.UUID]time.Time, error) {
	now := s.cfg.Now()
	rows := pgpool.Rows(ctx, s.cfg.DB, `
		SELECT id, expires_at - clock_timestamp() FROM sessions
		WHERE ended_version > $1 AND expires_at > now() - $2::interval LIMIT $3`, since, keepExpired, s.cfg.MaxEnded+1)
	ended := map[uuid.UUID]time.Time{}
	var id uuid.UUID
	var left time.Duration
	_, err := pgx.ForEachRow(rows, []any{&id, &left}, func() error {
		ended[id] = now.Add(left + keepExpired)
		return nil
	})
	return ended, errs.Wrap(err, "read which sessions have ended")
}

// apply remembers the keys, and the sessions that have ended after since and up to version. It
// calls those who watch such a session. If since is 0, ended has all ended sessions.
func (s *Service) apply(found keys, ended map[uuid.UUID]time.Time, since, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = found
	if since == 0 {
		s.ended = map[uuid.UUID]time.Time{}
	}
	s.version = version
	for id, until := range ended {
		if s.ended != nil {
			s.ended[id] = until
		}
		s.tell(id)
	}
	if len(s.ended) > s.cfg.MaxEnded {
		s.ended = nil
		s.cfg.Log.Warn("too many sessions have ended to remember them: the database is asked about each request with a "+
			"session", "most", s.cfg.MaxEnded)
	}
}

// tell calls those who watch a session that has ended. The caller holds mu.
func (s *Service) tell(id uuid.UUID) {
	for w := range s.watched[id] {
		w.expires.Stop()
		w.ended(invalid(reasonEnded))
	}
}

// endWatched calls those who watch an ended session.
func (s *Service) endWatched() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.watched {
		s.tell(id)
	}
}

// forgetExpired forgets ended sessions whose bearers have expired. If there were too many ended
// sessions to remember, the next RunOnce reads all of them again.
func (s *Service) forgetExpired() {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.version = 0
	}
	for id, until := range s.ended {
		if now.After(until) {
			delete(s.ended, id)
		}
	}
}
