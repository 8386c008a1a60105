package messages

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/mls"
)

// Draft is a message as its sender offers it. Epoch and Kind are those of the ciphertext's own MLS header.
type Draft struct {
	ConvoID   uuid.UUID
	GroupID   []byte // of the ciphertext's header: must be the convo's
	Sender    syntax.DID
	Key       string            // the client's idempotency key, or the one derived from the ciphertext; never empty
	Hash      [sha256.Size]byte // of the request's content (idem.Content.Hash): two drafts with it in common are the same request
	Kind      mls.ContentType   // application or proposal
	Epoch     int64
	Body      []byte
	EmbedType *string
	EmbedURI  *string
	Token     *serviceauth.Verified // is used up in the transaction in which the draft is judged; nil: none is
}

// ErrWrongGroup says that the ciphertext's header names another group than the convo's.
var ErrWrongGroup = errors.New("the ciphertext belongs to another group")

// ErrBusy says that another transaction holds the convo, so that nothing was judged or written.
var ErrBusy = errors.New("the convo is being written")

// Receipt is what the sender of a message learns.
type Receipt struct {
	ID       uuid.UUID
	Seq      int64
	Epoch    int64
	At       time.Time // whole milliseconds
	Replayed bool      // the message had been appended before, by a request with the same key and content
}

// Result is the outcome of one draft of a batch. Err is nil, ErrConvoNotFound, ErrNotMember, ErrWrongGroup,
// *EpochMismatchError, *idem.ConflictError or serviceauth.ErrReplayed.
type Result struct {
	Receipt
	Err error
	// spent says of a draft that is to be written again that its token was fresh, and is used up.
	spent bool
}

// refused reports whether r is a judgement and not a failure to come to one.
func (r Result) refused() bool {
	var (
		mismatch *EpochMismatchError
		conflict *idem.ConflictError
	)
	return errors.Is(r.Err, ErrConvoNotFound) || errors.Is(r.Err, ErrNotMember) || errors.Is(r.Err, ErrWrongGroup) ||
		errors.Is(r.Err, serviceauth.ErrReplayed) || errors.As(r.Err, &mismatch) || errors.As(r.Err, &conflict)
}

// Log appends messages.
type Log struct {
	db      *pgxpool.Pool
	batches *pgxpool.Pool // for transactions that messages share
	window  int64
	metrics idem.Metrics
	log     *slog.Logger
	faults  *failpoint.Set
	sends   *batcher

	// For measurements:
	statement string                    // appendDrafts, or less than it
	one       string                    // appendOne; "": a single draft is written as a batch
	otherwise atomic.Pointer[otherwise] // nil: Together
}

// Option changes a Log.
type Option func(*Log)

// NewLog returns a log on db. epochWindow is how many epochs behind the convo's a message may be (0: none). faults may be nil.
func NewLog(db *pgxpool.Pool, epochWindow int64, metrics idem.Metrics, log *slog.Logger, faults *failpoint.Set, options ...Option) *Log {
	l := &Log{db: db, batches: db, window: epochWindow, metrics: metrics, log: log, faults: faults, statement: appendDrafts, one: appendOne}
	l.sends = newBatcher(l.write)
	for _, o := range options {
		o(l)
	}
	return l
}

// NSID is the method whose idempotency keys this package keeps: on the message rows themselves, for as long as they live.
const NSID = "blue.catbird.mls.sendMessage"

// Append writes a batch of drafts and returns a result for each, in order, once it is durable. Drafts are judged one by one
// inside the statement: a refused one never fails its neighbours. The key is looked at before membership and epoch, so a retry
// gets its first answer whatever has happened since. The error is that of the first draft that could not be judged: the
// database's, idem.ErrUnknownOutcome, or idem.ErrInProgress if its key is being written by another request.
//
// It waits for convos that other transactions hold. A request to send one message does better with Send.
func (l *Log) Append(ctx context.Context, drafts []Draft) ([]Result, error) {
	results := l.write(ctx, drafts, true)
	for _, r := range results {
		if r.Err != nil && !r.refused() {
			return nil, r.Err
		}
	}
	return results, nil
}

// write appends drafts, of which several may have one key. Unless it may wait, the result of those whose convos other
// transactions hold is ErrBusy.
func (l *Log) write(ctx context.Context, drafts []Draft, wait bool) []Result {
	results := make([]Result, len(drafts))
	held := map[key]bool{}
	indices := refuseSharedTokens(drafts, results)
	for range mostPasses {
		if len(indices) == 0 {
			break
		}
		p := passOf(drafts, indices, held)
		settled := l.settle(ctx, p.first, wait)
		for i, j := range p.of {
			results[i] = settled[j]
			if p.indices[j] != i && results[i].Err == nil {
				results[i].Replayed = true
			}
			if results[i].Replayed {
				l.metrics.Replayed(NSID)
			}
		}
		indices = p.next(drafts, settled, results, held)
	}
	for _, i := range indices { // nothing that is well-behaved
		results[i].Err = ErrBusy
	}
	return results
}

// mostPasses bounds for how long the neighbours wait of somebody who sends many requests under one key. What is left then goes on in a
// batch of its convo's own, or is told to come again.
const mostPasses = 4

// attempts is how often a transaction is tried that could not be because of others at the same moment.
const attempts = 4

// settle writes drafts, whose keys are all different, and finds out what became of each.
func (l *Log) settle(ctx context.Context, drafts []Draft, wait bool) []Result {
	outcomes, err := l.transact(ctx, drafts, wait)
	for try := 1; try < attempts && again(outcomes, err, wait); try++ {
		select { // a moment apart from the others, who try again too
		case <-time.After(rand.N(time.Duration(try) * 5 * time.Millisecond)):
		case <-ctx.Done(): // transact says so
		}
		if err == nil {
			spend(drafts, outcomes)
		}
		outcomes, err = l.transact(ctx, drafts, wait)
	}
	if n := len(drafts) / 2; n > 0 && poisoned(err) {
		return append(l.settle(ctx, drafts[:n], wait), l.settle(ctx, drafts[n:], wait)...)
	}
	results := make([]Result, len(drafts))
	switch {
	case err == nil:
		for i, d := range drafts {
			results[i] = l.result(d, outcomes[i])
		}
	case errors.As(err, new(*lostError)):
		l.resolve(ctx, drafts, outcomes, results, err)
	default:
		for i, d := range drafts {
			results[i].Err = l.failure(ctx, d, err, wait)
		}
	}
	return results
}

// again reports whether a transaction that has written no message deserves another try: it was the victim of a deadlock, or it has
// waited for a lock and missed a convo whose sender had only just become a member.
func again(outcomes []outcome, err error, wait bool) bool {
	if err != nil {
		code := pgpool.Code(err)
		return code == "40P01" || code == "40001"
	}
	for _, o := range outcomes {
		if wait && o.status == statusBusy {
			return true
		}
	}
	return false
}

// spend takes from drafts the tokens that were fresh in a transaction that is committed and had these outcomes, so that they are not
// found to be used when the drafts are written again.
func spend(drafts []Draft, outcomes []outcome) {
	for i, o := range outcomes {
		if o.status != statusTokenUsed {
			drafts[i].Token = nil
		}
	}
}

// poisoned reports whether err may be the fault of a single draft: its values are not what a parameter or a row may hold.
func poisoned(err error) bool {
	if errors.As(err, new(*lostError)) {
		return false
	}
	switch code := pgpool.Code(err); {
	case code != "":
		return code[:2] == "22" || code[:2] == "23" || code[:2] == "54"
	default:
		return errors.As(err, new(pgx.ErrPreprocessingBatch))
	}
}

// failure is what a transaction's failure means for one of its drafts.
func (l *Log) failure(ctx context.Context, d Draft, err error, wait bool) error {
	switch {
	case pgpool.LockTimeout(err) && !wait:
		return ErrBusy
	case pgpool.LockTimeout(err) && l.running(ctx, d):
		l.metrics.InProgress(NSID)
		return fmt.Errorf("append: %w", idem.ErrInProgress)
	}
	return fmt.Errorf("append: %w", err)
}

// lostError says that a transaction may or may not have been committed.
type lostError struct{ cause error }

func (e *lostError) Error() string { return "the outcome of a commit was lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// transact runs the transaction. The error is a *lostError unless it is known that nothing was written.
func (l *Log) transact(ctx context.Context, drafts []Draft, wait bool) (outcomes []outcome, err error) {
	pool := l.batches
	if l.otherwise.Load() != nil {
		pool = l.db
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	if l.faults.Armed(failpoint.BeforeCommit, NSID) {
		// The server commits at the end of the round trip, unless it is told that there is more to come.
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if outcomes, err = l.appendBatch(ctx, tx, drafts, wait); err != nil {
				return err
			}
			return l.faults.Hit(ctx, failpoint.BeforeCommit, NSID)
		})
	} else {
		outcomes, err = l.appendBatch(ctx, conn, drafts, wait)
	}
	if err == nil {
		err = l.faults.Hit(ctx, failpoint.AfterCommit, NSID)
	}
	if lost(err) {
		err = &lostError{err}
	}
	return outcomes, err
}

// lost reports whether err leaves open what became of a transaction. An ERROR of the server's does not: it has rolled back. But the
// FATAL one that a session ends with may come after its COMMIT.
func lost(err error) bool {
	var (
		refusal *pgconn.PgError
		unsent  pgx.ErrPreprocessingBatch
	)
	switch {
	case err == nil:
		return false
	case errors.As(err, &refusal):
		return refusal.SeverityUnlocalized != "ERROR"
	}
	return !errors.As(err, &unsent)
}

// lookupTimeout bounds the search for what became of a batch, which goes on when the batch's own time is over.
const lookupTimeout = 5 * time.Second

// resolve fills in the results of drafts whose COMMIT was lost. What was only judged needs none. A message was appended if the log
// holds its key for the same content; whether by this transaction or by another request's makes no difference to the answer. If it
// does not, the old session may still be committing: "not there" is not yet "not done".
func (l *Log) resolve(ctx context.Context, drafts []Draft, outcomes []outcome, results []Result, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	found, err := l.lookup(ctx, drafts)
	for i, d := range drafts {
		o, appended := found[i]
		switch {
		case len(outcomes) == len(drafts) && outcomes[i].status != statusAppended:
			results[i] = l.result(d, outcomes[i])
			results[i].spent = false // it may not be: then the token goes along, and where it is, it is refused
		case appended:
			results[i] = l.result(d, o)
		default:
			results[i].Err = errors.Join(fmt.Errorf("append: %w: %w", idem.ErrUnknownOutcome, cause), err)
		}
	}
	if len(found) > 0 {
		l.log.WarnContext(ctx, "a lost commit was found committed", "nsid", NSID, "messages", len(found))
	}
}

// result turns what the statement said about a draft into its answer.
func (l *Log) result(d Draft, o outcome) Result {
	switch o.status {
	case statusTokenUsed:
		return Result{Err: serviceauth.ErrReplayed}
	case statusBusy:
		return Result{Err: ErrBusy, spent: true}
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
