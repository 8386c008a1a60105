// Package idem makes a write safe to repeat. A request that carries an idempotency key leaves a record in the same
// transaction as its effect, so that neither can exist without the other; a repetition finds the record and gets the first
// answer, byte for byte.
//
// This is class T: writes whose effects all lie in PostgreSQL. They need no lease. The record is inserted first and its
// unique index is the lock: a concurrent repetition waits on it, sees the winner's record once that has committed, or takes
// the place of a winner that rolled back. A refused request (a 4xx) rolls back and leaves nothing, so it is judged anew.
package idem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

// ErrInProgress says that a request with the same key is still running.
var ErrInProgress = errors.New("a request with this idempotency key is still running")

// ErrUnknownOutcome says that the connection was lost while committing and that no record can tell whether it did.
var ErrUnknownOutcome = errors.New("the outcome of the write is not known")

// ConflictError says that the key was used before for another request.
type ConflictError struct {
	Fields []string  // names of the input fields that differ, sorted; never their values
	At     time.Time // when the first request was answered
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("the idempotency key was used for another request; differing fields: %s", strings.Join(e.Fields, ", "))
}

// Request names one write and says what was asked.
type Request struct {
	Caller syntax.DID
	NSID   string
	Scope  string  // the convo that the method names, or ""
	Key    string  // "" leaves no record: the write has a natural guard of its own
	Input  Content // what was asked, without the key
}

// Answer is what the caller gets.
type Answer struct {
	Body     []byte // the response, exactly as it was first sent
	Replayed bool
}

// Effect does the write inside tx and returns the encoded response. An error rolls everything back.
type Effect func(ctx context.Context, tx pgx.Tx) (response []byte, err error)

// Metrics counts what happens to keys. Methods are safe for concurrent use.
type Metrics interface {
	Replayed(nsid string)
	Conflicted(nsid string)
	InProgress(nsid string)
}

// Store runs writes and owns the table idempotency_keys.
type Store struct {
	db      *pgxpool.Pool
	faults  *failpoint.Set
	metrics Metrics
	log     *slog.Logger
}

// New returns a store on db. faults may be nil.
func New(db *pgxpool.Pool, metrics Metrics, log *slog.Logger, faults *failpoint.Set) *Store {
	return &Store{db: db, faults: faults, metrics: metrics, log: log}
}

// Do runs effect at most once for the request's key and returns the answer: the new one, or the first one if the key has
// been used for the same input. It is the only place that opens and commits these transactions.
//
// Errors besides effect's own: *ConflictError, ErrInProgress, ErrUnknownOutcome, and those of the database.
func (s *Store) Do(ctx context.Context, req Request, effect Effect) (Answer, error) {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("begin: %w", err)
	}
	defer s.rollback(ctx, tx)

	if req.Key != "" {
		reserved, err := reserve(ctx, tx, req)
		if pgpool.LockTimeout(err) {
			s.metrics.InProgress(req.NSID)
			return Answer{}, ErrInProgress
		}
		if err != nil {
			return Answer{}, fmt.Errorf("reserve the idempotency key: %w", err)
		}
		if !reserved {
			return s.replay(ctx, tx, req)
		}
	}
	response, err := effect(ctx, tx)
	if err != nil {
		return Answer{}, err
	}
	if req.Key != "" {
		if err := complete(ctx, tx, req, response); err != nil {
			return Answer{}, fmt.Errorf("record the answer: %w", err)
		}
	}
	if err := s.faults.Hit(ctx, failpoint.BeforeCommit, req.NSID); err != nil {
		return Answer{}, err
	}
	// From here on the caller's impatience must not turn a known outcome into an unknown one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.commit(ctx, tx, req.NSID); err != nil {
		return s.resolve(ctx, req, err)
	}
	return Answer{Body: response}, nil
}

// commitTimeout bounds the wait for a COMMIT and, after a lost connection, for the look-up of its outcome.
const commitTimeout = 10 * time.Second

// commit commits tx. The failpoint after it stands for a connection that is lost once the server has committed.
func (s *Store) commit(ctx context.Context, tx pgx.Tx, nsid string) error {
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return s.faults.Hit(ctx, failpoint.AfterCommit, nsid)
}

// replay answers from the record that reserve ran into.
func (s *Store) replay(ctx context.Context, tx pgx.Tx, req Request) (Answer, error) {
	rec, err := lookup(ctx, tx, req)
	if errors.Is(err, pgx.ErrNoRows) {
		// The record was removed between two statements; the caller's retry will find the key free.
		s.metrics.InProgress(req.NSID)
		return Answer{}, ErrInProgress
	}
	if err != nil {
		return Answer{}, fmt.Errorf("look up the idempotency key: %w", err)
	}
	if err := rec.conflict(req); err != nil {
		s.metrics.Conflicted(req.NSID)
		return Answer{}, err
	}
	s.metrics.Replayed(req.NSID)
	return Answer{Body: rec.response, Replayed: true}, nil
}

// resolve finds out what became of a COMMIT whose outcome was lost: the record says so, or nothing can.
func (s *Store) resolve(ctx context.Context, req Request, cause error) (Answer, error) {
	if code := pgpool.Code(cause); code != "" && !pgpool.Unavailable(cause) {
		return Answer{}, fmt.Errorf("commit: %w", cause) // the server refused it: a known outcome
	}
	if req.Key == "" {
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, cause)
	}
	rec, err := lookup(ctx, s.db, req)
	if errors.Is(err, pgx.ErrNoRows) {
		// The old session may still be committing: "not there" is not yet "not done".
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, cause)
	}
	if err != nil {
		return Answer{}, errors.Join(ErrUnknownOutcome, cause, err)
	}
	if err := rec.conflict(req); err != nil {
		return Answer{}, err
	}
	s.log.WarnContext(ctx, "a lost commit was found committed", "nsid", req.NSID)
	return Answer{Body: rec.response}, nil
}

// rollback ends a transaction that was not committed. A failure is only logged: the server rolls back on its own once the
// connection is gone, and pgx closes a connection it could not reset.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		s.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}
