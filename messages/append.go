package messages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Draft is a message as its sender offers it. Epoch and Kind are those of the ciphertext's own MLS header.
type Draft struct {
	ConvoID   uuid.UUID
	GroupID   []byte // of the ciphertext's header: must be the convo's
	Sender    syntax.DID
	Key       string // the client's idempotency key, or the one derived from the ciphertext; never empty
	Input     idem.Content
	Kind      mls.ContentType // application or proposal
	Epoch     int64
	Body      []byte
	EmbedType *string
	EmbedURI  *string
}

// ErrWrongGroup says that the ciphertext's header names another group than the convo's.
var ErrWrongGroup = errors.New("the ciphertext belongs to another group")

// Receipt is what the sender of a message learns.
type Receipt struct {
	ID       uuid.UUID
	Seq      int64
	Epoch    int64
	At       time.Time // whole milliseconds
	Replayed bool      // the message had been appended before, by a request with the same key and content
}

// Result is the outcome of one draft of a batch. Err is nil, ErrConvoNotFound, ErrNotMember, ErrWrongGroup,
// *EpochMismatchError or *idem.ConflictError.
type Result struct {
	Receipt
	Err error
}

// Log appends messages.
type Log struct {
	db      *pgxpool.Pool
	window  int64
	metrics idem.Metrics
	log     *slog.Logger
	faults  *failpoint.Set

	statement string // appendDrafts, but for measurements
}

// NewLog returns a log on db. epochWindow is how many epochs behind the convo's a message may be (0: none). faults may be nil.
func NewLog(db *pgxpool.Pool, epochWindow int64, metrics idem.Metrics, log *slog.Logger, faults *failpoint.Set) *Log {
	return &Log{db: db, window: epochWindow, metrics: metrics, log: log, faults: faults, statement: appendDrafts}
}

// NSID is the method whose idempotency keys this package keeps: on the message rows themselves, for as long as they live.
const NSID = "blue.catbird.mls.sendMessage"

// Append writes a batch of drafts in one transaction and returns a result for each, in order, once it is durable. Drafts are
// judged one by one inside the statement: a refused one never fails its neighbours. The key is looked at before membership
// and epoch, so a retry gets its first answer whatever has happened since. The error is of the batch as a whole: the
// database's, idem.ErrUnknownOutcome, or idem.ErrInProgress if one of the keys is being written by another request.
func (l *Log) Append(ctx context.Context, drafts []Draft) ([]Result, error) {
	results := make([]Result, len(drafts))
	for pass := joinAll(drafts); len(pass.first) > 0; pass = joinSome(drafts, pass.later) {
		outcomes, err := l.write(ctx, pass.first)
		if pgpool.Code(err) == uniqueViolation {
			// A sender became a member between the statements, so its convo was not locked. Now it will be.
			outcomes, err = l.write(ctx, pass.first)
		}
		if err != nil {
			return nil, err
		}
		for i, j := range pass.of {
			results[i] = l.result(pass.first[j], outcomes[j])
			if pass.first[j].index != i && results[i].Err == nil {
				results[i].Replayed = true
			}
			if results[i].Replayed {
				l.metrics.Replayed(NSID)
			}
		}
	}
	return results, nil
}

const uniqueViolation = "23505"

// write runs the transaction, and resolves a COMMIT whose answer was lost.
func (l *Log) write(ctx context.Context, drafts []draft) ([]outcome, error) {
	tx, err := l.db.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("append: begin: %w", err)
	}
	defer l.rollback(ctx, tx)
	outcomes, err := l.appendBatch(ctx, tx, drafts)
	if errors.Is(err, idem.ErrInProgress) {
		l.metrics.InProgress(NSID)
	}
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	if err := l.faults.Hit(ctx, failpoint.BeforeCommit, NSID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err = tx.Commit(ctx)
	if err == nil {
		err = l.faults.Hit(ctx, failpoint.AfterCommit, NSID)
	}
	if err == nil {
		return outcomes, nil
	}
	if code := pgpool.Code(err); code != "" && !pgpool.Unavailable(err) {
		return nil, fmt.Errorf("append: commit: %w", err)
	}
	return l.resolve(ctx, outcomes, err)
}

// commitTimeout bounds the wait for a COMMIT and, after a lost connection, for the look-up of its outcome.
const commitTimeout = 10 * time.Second

// resolve answers a batch whose COMMIT was lost with what the server says of its transaction. The rows would not do: another
// request may have the key and the seq by now. If nothing was to be written, there was nothing to lose.
func (l *Log) resolve(ctx context.Context, outcomes []outcome, cause error) ([]outcome, error) {
	i := slices.IndexFunc(outcomes, func(o outcome) bool { return o.status == statusAppended })
	if i < 0 {
		return outcomes, nil
	}
	var status *string
	err := l.db.QueryRow(ctx, `SELECT pg_xact_status($1::text::xid8)`, outcomes[i].xid).Scan(&status)
	if err != nil || status == nil || *status != "committed" {
		return nil, errors.Join(fmt.Errorf("append: %w: %w", idem.ErrUnknownOutcome, cause), err)
	}
	l.log.WarnContext(ctx, "a lost commit was found committed", "nsid", NSID)
	return outcomes, nil
}

func (l *Log) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		l.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}

// result turns what the statement said about a draft into its answer.
func (l *Log) result(d draft, o outcome) Result {
	switch o.status {
	case statusConvoNotFound:
		return Result{Err: ErrConvoNotFound}
	case statusNotMember:
		return Result{Err: ErrNotMember}
	case statusWrongGroup:
		return Result{Err: ErrWrongGroup}
	case statusWrongEpoch:
		return Result{Err: &EpochMismatchError{Epoch: d.Epoch, Current: o.currentEpoch}}
	case statusConflict:
		l.metrics.Conflicted(NSID)
		return Result{Err: &idem.ConflictError{Fields: o.differing, At: o.at}}
	}
	return Result{Receipt: Receipt{
		ID: idOf(d.ConvoID, o.seq, o.at), Seq: o.seq, Epoch: d.Epoch, At: o.at, Replayed: o.status == statusRepeated,
	}}
}
