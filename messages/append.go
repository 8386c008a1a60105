package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
)

// maxAttempts is how often a transaction is tried if it fails because of concurrent transactions.
const maxAttempts = 4

// write appends drafts in one transaction, and returns the result of each. If wait is false, the
// result of a draft is ErrBusy when another transaction has locked its convo.
//
// A draft that PostgreSQL refuses to store fails the transaction. Then write halves the batch until
// that draft is alone.
func (l *Log) write(ctx context.Context, drafts []Draft, wait bool) []Result {
	results, err := l.transact(ctx, drafts, wait)
	for attempt := 1; attempt < maxAttempts && worthAnotherTry(err); attempt++ {
		select { // at random, so that transactions that met do not meet again
		case <-time.After(rand.N(time.Duration(attempt) * 5 * time.Millisecond)):
		case <-ctx.Done(): // transact returns its error
		}
		results, err = l.transact(ctx, drafts, wait)
	}
	var lost *lostError
	switch n := len(drafts) / 2; {
	case errors.As(err, &lost):
		l.resolve(ctx, drafts, results, lost)
	case n > 0 && invalidDraft(err):
		return append(l.write(ctx, drafts[:n], wait), l.write(ctx, drafts[n:], wait)...)
	case err != nil:
		results = make([]Result, len(drafts))
		for i, d := range drafts {
			results[i].Err = l.failure(ctx, d, err, wait)
		}
	}
	l.count(results)
	return results
}

// count counts what became of the drafts' keys.
func (l *Log) count(results []Result) {
	for _, r := range results {
		switch {
		case r.Err == nil && !r.Replayed:
			l.metrics.First(nsid.SendMessage)
		case r.Replayed:
			l.metrics.Replayed(nsid.SendMessage)
		case errors.As(r.Err, new(*idem.ConflictError)):
			l.metrics.Conflicted(nsid.SendMessage)
		case errors.Is(r.Err, idem.ErrInProgress):
			l.metrics.InProgress(nsid.SendMessage)
		}
	}
}

// worthAnotherTry reports whether the same transaction may succeed now.
func worthAnotherTry(err error) bool {
	code := pgpool.Code(err)
	return code == "40P01" || code == "40001" || errors.Is(err, errJoined)
}

// invalidDraft reports whether a single draft can be the reason of err: a parameter or a row cannot
// hold its values.
func invalidDraft(err error) bool {
	if code := pgpool.Code(err); code != "" {
		return code[:2] == "22" || code[:2] == "23" || code[:2] == "54"
	}
	return (errors.As(err, new(pgx.ErrPreprocessingBatch)) || errors.Is(err, pgpool.ErrNotSent)) && !pgpool.Unavailable(err)
}

// failure is what the failure of a transaction means for its draft d.
func (l *Log) failure(ctx context.Context, d Draft, err error, wait bool) error {
	switch {
	case errors.Is(err, errJoined), pgpool.LockTimeout(err) && !wait:
		return ErrBusy
	case pgpool.LockTimeout(err) && l.running(ctx, d):
		return idem.ErrInProgress
	}
	return err
}

// batchLockTimeout is how long a transaction with drafts of several convos waits for a lock. A
// draft that it cannot write in this time moves to a transaction of its own convo.
const batchLockTimeout = 250 * time.Millisecond

// transact writes drafts in one transaction of two round trips. The first one locks and reads what
// the judge needs. The second one writes what the judge decided and commits. The error is a
// *lostError if the transaction is possibly committed; then the results are what the judge decided.
// With any other error nothing was written.
func (l *Log) transact(ctx context.Context, drafts []Draft, wait bool) (results []Result, err error) {
	conn, err := l.batches.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var tx *pgpool.Transaction
	if wait {
		tx = pgpool.NewTransaction(conn, "")
	} else {
		tx = pgpool.NewTransaction(conn, boundLocks, fmt.Sprint(batchLockTimeout.Milliseconds()))
	}
	defer l.rollback(ctx, tx)
	all, at, err := l.prepare(ctx, tx, drafts, wait)
	if err != nil {
		return nil, err
	}
	judge := newJudge(l.window, at)
	results = make([]Result, len(drafts))
	for i := range drafts {
		results[i] = judge.judge(&drafts[i], &all[i])
	}
	if err := l.commit(ctx, tx, judge); pgpool.OutcomeUnknown(err) {
		return results, &lostError{err}
	} else if err != nil {
		return nil, err
	}
	return results, nil
}

// commit writes the judge's entries, if there are any, and commits. The failpoint before the COMMIT
// is between the two, in the same round trip.
func (l *Log) commit(ctx context.Context, tx *pgpool.Transaction, j *judge) (err error) {
	if len(j.entries) > 0 {
		statement := &pgx.Batch{}
		statement.Queue(appendEntries, entryParams(j.entries, j.at)...)
		err = tx.CommitAfter(ctx, statement, l.faults.Hook(ctx, failpoint.BeforeCommit, nsid.SendMessage))
	} else if err = l.faults.Hit(ctx, failpoint.BeforeCommit, nsid.SendMessage); err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return err
	}
	return l.faults.Hit(ctx, failpoint.AfterCommit, nsid.SendMessage)
}

func (l *Log) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		l.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}

// lostError says that the outcome of a COMMIT is unknown.
type lostError struct{ cause error }

func (e *lostError) Error() string { return "the outcome of a commit was lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// lookupTimeout bounds the look-up of a transaction's outcome, and its rollback. The time of the
// transaction itself can be over by then.
const lookupTimeout = 5 * time.Second

// resolve looks up the outcome of the drafts of a lost transaction. A refusal needs no commit, so
// it is final. A message was appended if the log has its key with the same content: it makes no
// difference which request appended it. If the log has no such message, the outcome is unknown,
// because the old session is possibly still committing.
func (l *Log) resolve(ctx context.Context, drafts []Draft, results []Result, lost *lostError) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	found, err := l.lookup(ctx, drafts)
	missing := map[requestKey]bool{} // keys of messages that the transaction may not have appended
	for i := range drafts {
		if _, ok := found[i]; !ok && results[i].Err == nil && !results[i].Replayed {
			missing[drafts[i].requestKey()] = true
		}
	}
	for i, d := range drafts {
		if conflict := errors.As(results[i].Err, new(*idem.ConflictError)); results[i].Err != nil && !(conflict && missing[d.requestKey()]) {
			continue
		}
		if r, ok := found[i]; ok {
			results[i] = Result{Receipt: receipt(&d, r.seq, r.at, results[i].Replayed)}
			continue
		}
		results[i] = Result{Err: errors.Join(fmt.Errorf("%w: %w", idem.ErrUnknownOutcome, lost), err)}
	}
	if len(found) > 0 {
		l.log.WarnContext(ctx, "a lost commit was found committed", "nsid", nsid.SendMessage, "messages", len(found))
	}
}
