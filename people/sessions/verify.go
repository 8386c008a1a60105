package sessions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/serviceauth"
)

// bearerScheme is the authentication scheme of RFC 6750.
const bearerScheme = "Bearer "

// Bearer returns the session in an Authorization header. ok is false if the header has something
// else, such as a service-auth token.
func Bearer(authorization string) (token string, ok bool) {
	if len(authorization) < len(bearerScheme) || !strings.EqualFold(authorization[:len(bearerScheme)], bearerScheme) {
		return "", false
	}
	token = strings.Trim(authorization[len(bearerScheme):], " ")
	return token, strings.HasPrefix(token, bearerPrefix)
}

// Verify checks a session. It does no I/O, unless there are too many ended sessions to remember.
// Errors: *serviceauth.InvalidError; serviceauth.ErrUnavailable, if the node has not read for
// trustFor which sessions have ended; errors of the database.
func (s *Service) Verify(ctx context.Context, token string) (Session, error) {
	c, err := parse(bearerPrefix, token, s.key)
	if err != nil {
		return Session{}, err
	}
	session := c.session()
	return session, s.Check(ctx, session)
}

// Check fails unless a verified session is valid now. It returns the errors of Verify.
func (s *Service) Check(ctx context.Context, session Session) error {
	if !s.cfg.Now().Before(session.Expires) {
		return invalid(reasonExpired)
	}
	s.mu.RLock()
	fresh, remembers := s.fresh(), s.ended != nil
	_, ended := s.ended[session.ID]
	s.mu.RUnlock()
	switch {
	case ended:
		return invalid(reasonEnded)
	case !fresh:
		return fmt.Errorf("%w: which sessions have ended", serviceauth.ErrUnavailable)
	case !remembers:
		return s.ask(ctx, session.ID)
	}
	return nil
}

// fresh reports whether the node has recently read which sessions have ended. The caller holds mu.
func (s *Service) fresh() bool {
	return !s.read.IsZero() && s.cfg.Now().Sub(s.read) <= trustFor
}

// ask asks the database whether a session has ended.
func (s *Service) ask(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var ended bool
	err := s.cfg.Lookups.QueryRow(ctx, `SELECT ended_version IS NOT NULL FROM sessions WHERE id = $1`, id).Scan(&ended)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && ended:
		return invalid(reasonEnded)
	case err != nil:
		return fmt.Errorf("read whether a session has ended: %w", err)
	}
	return nil
}

// watch is the function to call when a session ends.
type watch struct {
	ended   func(error)
	expires *time.Timer
}

// Watch calls ended, with the error of Verify, when the session ends or its bearer expires, unless
// stop is called before that. ended must not block.
func (s *Service) Watch(session Session, ended func(error)) (stop func()) {
	w := &watch{ended: ended}
	s.mu.Lock()
	_, over := s.ended[session.ID]
	if !over {
		if s.watched[session.ID] == nil {
			s.watched[session.ID] = map[*watch]struct{}{}
		}
		s.watched[session.ID][w] = struct{}{}
		w.expires = time.AfterFunc(session.Expires.Sub(s.cfg.Now()), func() { ended(invalid(reasonExpired)) })
	}
	s.mu.Unlock()
	if over {
		ended(invalid(reasonEnded))
		return func() {}
	}
	return func() {
		w.expires.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watched[session.ID], w)
		if len(s.watched[session.ID]) == 0 {
			delete(s.watched, session.ID)
		}
	}
}
