package idem

import (
	"bytes"
	"cmp"
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
	"mlsd/internal/worker"
)

// Do first inserts the record, and the unique index on records is the lock. A concurrent repetition
// waits. Then it reads the record, or runs if the first request rolled back. A refused request (a
// 4xx) rolls back and leaves no record.

// ErrInProgress says that a request with the same key is still running. It is a *RunningError if
// the server knows when that request began.
var ErrInProgress = errors.New("a request with this idempotency key is still running; wait, then send the same " +
	"bytes again")

// ErrUnknownOutcome says that the connection was lost during COMMIT, and that no record shows
// whether the transaction was committed.
var ErrUnknownOutcome = errors.New("the outcome of the write is not known")

// RunningError is ErrInProgress for work that holds a lease.
type RunningError struct {
	Since time.Time     // when the running attempt began
	Left  time.Duration // how long until another request can take over the work
}

func (e *RunningError) Error() string {
	return fmt.Sprintf("%v; processing_started_at=%s", ErrInProgress, e.Since.UTC().Format(timestamp))
}

// Unwrap returns ErrInProgress.
func (e *RunningError) Unwrap() error { return ErrInProgress }

// timestamp is RFC 3339 with milliseconds, as everywhere in the contract.
const timestamp = "2006-01-02T15:04:05.000Z07:00"

// ConflictError says that the key was already used for another request.
type ConflictError struct {
	Fields []string  // paths of the input fields that differ, sorted; no values
	At     time.Time // when the first request arrived
	// Expires is when the key can be used again. Zero means never, or once the row that serves as
	// the key's record is deleted.
	Expires time.Time
	First   []byte // hash of the first request
	Hash    []byte // hash of this request
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("the idempotency key was used for another request; differing fields: %s; first used at %s",
		strings.Join(e.Fields, ", "), e.At.UTC().Format(timestamp))
	if !e.Expires.IsZero() {
		text += "; keyExpiresAt=" + e.Expires.UTC().Format(timestamp)
	}
	return text + "; a new request needs a new key"
}

// Request names one write and says what was asked.
type Request struct {
	Caller syntax.DID
	NSID   string
	Scope  string  // the convo that the method names, or ""
	Key    string  // "" leaves no record: the write by itself takes effect only once
	Input  Content // input of the request, without the key

	Life  time.Duration // lifetime of the record; 0 means DefaultLife
	Lease time.Duration // lifetime of the reservation, for Run; 0 means that of the Store
}

// Answer is what the caller gets.
type Answer struct {
	Body     []byte // the response, exactly as it was first sent
	Replayed bool
	// Found says that the answer to the COMMIT was lost, and that Body was read from the record. If
	// Replayed is false, Body equals what the effect returned, but a repetition may have done the
	// write. So use only Body, and nothing else that the effect has read or made.
	Found   bool
	Expired bool    // the key was used before, but the lifetime of its record is over
	Outcome Outcome // outcome of work outside the database; Success for every other write
}

// Effect does the write inside tx and returns the encoded response. An error rolls back the whole
// transaction.
type Effect func(ctx context.Context, tx pgx.Tx) (response []byte, err error)

// Metrics counts what happens to keys. Methods are safe for concurrent use.
type Metrics interface {
	First(nsid string) // a write under a new key took effect
	Replayed(nsid string)
	Conflicted(nsid string)
	InProgress(nsid string)
	Expired(nsid string)       // a key was used again after the lifetime of its record
	TakenOver(nsid string)     // another request took over a reservation whose lease had expired
	HeartbeatLost(nsid string) // a heartbeat failed, or found that another request had taken over
}

// Store runs writes and owns the table idempotency_keys.
type Store struct {
	db      *pgxpool.Pool
	faults  *failpoint.Set
	metrics Metrics
	log     *slog.Logger
	lease   time.Duration // lease of requests that set none
	retire  Retire
	timed   Timed
	beats   func(every time.Duration) (beat <-chan time.Time, stop func())
}

// Option changes a Store.
type Option func(*Store)

// WithBeats sets the source of the beats at which the holder of a lease extends it. The default is
// a ticker.
func WithBeats(beats func(every time.Duration) (beat <-chan time.Time, stop func())) Option {
	return func(s *Store) { s.beats = beats }
}

// Timed has functions that [Store.Do] calls with the durations of a write's steps.
type Timed struct {
	LookedUp  func(time.Duration) // time to take the key or to find it used, including any wait
	Committed func(time.Duration) // time to store the answer and to commit, even if that fails
}

// WithTimed sets the functions that get the durations.
func WithTimed(timed Timed) Option { return func(s *Store) { s.timed = timed } }

// WithLease sets the lease of requests that set none. 0 means DefaultLease.
func WithLease(lease time.Duration) Option {
	return func(s *Store) { s.lease = cmp.Or(lease, DefaultLease) }
}

// New returns a store on db. faults can be nil.
func New(db *pgxpool.Pool, metrics Metrics, log *slog.Logger, faults *failpoint.Set, options ...Option) *Store {
	s := &Store{db: db, faults: faults, metrics: metrics, log: log, retire: noRows, lease: DefaultLease,
		beats: worker.Clock{}.System().Ticker,
		timed: Timed{LookedUp: func(time.Duration) {}, Committed: func(time.Duration) {}}}
	for _, o := range options {
		o(s)
	}
	return s
}

// Do runs effect at most once for the request's key, and returns the answer. If the key has been
// used for the same input, that is the first answer. Only Do opens and commits these transactions.
//
// Errors besides effect's own: *ConflictError, ErrInProgress, ErrKeyTaken, ErrUnknownOutcome, and
// errors of the database. Answer.Expired is set even if effect fails.
func (s *Store) Do(ctx context.Context, req Request, effect Effect) (Answer, error) {
	tx, err := s.begin(ctx, req)
	if err != nil {
		return Answer{}, err
	}
	defer s.rollback(ctx, tx)

	answer := Answer{Outcome: Success}
	if req.Key != "" {
		var first *Answer
		began := time.Now()
		first, answer.Expired, err = s.claim(ctx, tx, req)
		s.timed.LookedUp(time.Since(began))
		if err != nil {
			return Answer{}, err
		}
		if first != nil {
			return *first, nil
		}
	}
	if answer.Body, err = effect(ctx, tx); err != nil {
		if keyTaken(err) {
			err = fmt.Errorf("%w: %w", ErrKeyTaken, err)
		}
		return Answer{Expired: answer.Expired}, err
	}
	if req.Key != "" {
		complete(tx, req, answer.Body)
	}
	if err := s.faults.Hit(ctx, failpoint.BeforeCommit, req.NSID); err != nil {
		return Answer{}, err
	}
	// If the caller disconnects after this line, the outcome must not become unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	began := time.Now()
	err = s.commit(ctx, tx, req.NSID)
	s.timed.Committed(time.Since(began))
	if err != nil {
		if answer, err = s.resolve(ctx, req, answer, err); err != nil {
			return Answer{}, err
		}
	}
	switch {
	case answer.Replayed:
		s.metrics.Replayed(req.NSID)
	case req.Key != "" && !answer.Expired:
		s.metrics.First(req.NSID)
	}
	return answer, nil
}

// begin returns a transaction that is restricted to the caller's records.
func (s *Store) begin(ctx context.Context, req Request) (*pgpool.Transaction, error) {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	method := req.NSID[strings.LastIndexByte(req.NSID, '.')+1:]
	return pgpool.NewTransaction(conn, asCaller, req.Caller.String(), method), nil
}

// claim takes the key inside tx, or returns the first answer. expired says that the key had a
// record whose lifetime was over.
func (s *Store) claim(ctx context.Context, tx pgx.Tx, req Request) (first *Answer, expired bool, err error) {
	reserved, err := reserve(ctx, tx, req)
	if err == nil && !reserved {
		if reserved, err = reclaim(ctx, tx, req); reserved {
			s.metrics.Expired(req.NSID)
			expired = true
			err = s.retire(ctx, tx, []UsedKey{{Caller: req.Caller.String(), NSID: req.NSID, Scope: req.Scope, Key: req.Key}})
		}
	}
	if pgpool.LockTimeout(err) {
		s.metrics.InProgress(req.NSID)
		return nil, false, ErrInProgress
	}
	if err != nil {
		return nil, false, fmt.Errorf("reserve the idempotency key: %w", err)
	}
	if reserved {
		return nil, expired, nil
	}
	answer, err := s.replay(ctx, tx, req)
	return &answer, false, err
}

// commitTimeout bounds the wait for a COMMIT. If the connection is lost, it also bounds the look-up
// of the outcome.
const commitTimeout = 10 * time.Second

// commit commits tx. The failpoint after the COMMIT simulates a lost connection.
func (s *Store) commit(ctx context.Context, tx pgx.Tx, nsid string) error {
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return s.faults.Hit(ctx, failpoint.AfterCommit, nsid)
}

// replay answers from the record of the key.
func (s *Store) replay(ctx context.Context, q pgpool.Queryer, req Request) (Answer, error) {
	rec, err := lookup(ctx, q, req)
	if errors.Is(err, pgx.ErrNoRows) {
		// The record was deleted between two statements. The caller's retry finds the key free.
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
	if rec.state != completed {
		s.metrics.InProgress(req.NSID)
		return Answer{}, &RunningError{Since: *rec.startedAt, Left: rec.left}
	}
	s.metrics.Replayed(req.NSID)
	return Answer{Body: rec.response, Replayed: true, Outcome: rec.outcome}, nil
}

// resolve looks up the outcome of a COMMIT whose answer was lost. If there is a record, the write
// was done, and resolve returns the recorded answer. If this answer differs from the transaction's
// own answer, it counts as a replay, because a simultaneous repetition did the write. Without a
// record the outcome is unknown.
func (s *Store) resolve(ctx context.Context, req Request, answer Answer, cause error) (Answer, error) {
	if !pgpool.OutcomeUnknown(cause) {
		return Answer{}, fmt.Errorf("commit: %w", cause)
	}
	if req.Key == "" {
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, cause)
	}
	rec, err := s.lookupCommitted(ctx, req)
	if errors.Is(err, pgx.ErrNoRows) {
		// The old session may still be committing.
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, cause)
	}
	if err != nil {
		return Answer{}, errors.Join(ErrUnknownOutcome, cause, err)
	}
	if err := rec.conflict(req); err != nil {
		return Answer{}, err
	}
	s.log.WarnContext(ctx, "a lost commit was found committed", "nsid", req.NSID)
	answer.Replayed = !bytes.Equal(rec.response, answer.Body)
	answer.Body, answer.Outcome, answer.Found = rec.response, rec.outcome, true
	return answer, nil
}

// lookupCommitted runs lookup in a transaction of its own.
func (s *Store) lookupCommitted(ctx context.Context, req Request) (rec record, err error) {
	tx, err := s.begin(ctx, req)
	if err != nil {
		return rec, err
	}
	defer s.rollback(ctx, tx)
	return lookup(ctx, tx, req)
}

// rollback ends a transaction. It only logs a failure, because pgx then closes the connection, and
// PostgreSQL rolls back.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		s.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}
