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
	"mlsd/internal/worker"
)

// maxAttempts is how often a transaction is tried if it fails because of concurrent transactions.
const maxAttempts = 4

// write appends drafts in one transaction, and returns the result of each. If wait is false, the
// result of a draft is ErrBusy when another transaction has locked its convo.
//
// A draft that PostgreSQL refuses to store fails the transaction. Then write halves the batch until
// that draft is alone.
func (l *Log) write(ctx context.Context, drafts []Draft, wait bool) []Result {
	takeQuota(drafts)
	results, err := l.transact(ctx, drafts, wait)
	for attempt := 1; attempt < maxAttempts && worthAnotherTry(err); attempt++ {
		// At random, so that transactions that met do not meet again. If ctx ends, transact returns its error.
		worker.Pause(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond))
		results, err = l.transact(ctx, drafts, wait)
	}
	var lost *lostError
	switch n := len(drafts) / 2; {
	case errors.As(err, &lost):
		results = l.resolve(ctx, drafts, results, lost)
	case n > 0 && invalidDraft(err):
		return append(l.write(ctx, drafts[:n], wait), l.write(ctx, drafts[n:], wait)...)
	case err != nil:
		results = make([]Result, len(drafts))
		for i, d := range drafts {
			results[i].Err = l.failure(ctx, d, err, wait)
		}
	}
	returnUnused(drafts, results)
	l.count(results)
	if wait && (err == nil || lost != nil) {
		l.writeJoined(ctx, drafts, results)
	}
	return results
}

// takeQuota counts the drafts before they are judged. append.sql refuses those that have no quota
// left, unless it has another answer for them.
func takeQuota(drafts []Draft) {
	for i := range drafts {
		d := &drafts[i]
		if d.overQuota = d.Unfit; d.overQuota != nil {
			continue
		}
		d.overQuota = d.Quota.TakeMessage(d.ConvoID, len(d.Body))
	}
}

// returnUnused takes back what was counted for drafts that have stored nothing, or possibly nothing.
func returnUnused(drafts []Draft, results []Result) {
	for i, r := range results {
		if d := &drafts[i]; r.Err != nil || r.Replayed {
			d.Quota.Return()
		} else {
			d.Quota.StoredMessage(d.ConvoID, len(d.Body))
		}
	}
}

// writeJoined writes the drafts that are still busy in a transaction that waits for convos: their
// senders joined after waitForConvos looked.
func (l *Log) writeJoined(ctx context.Context, drafts []Draft, results []Result) {
	var joined []Draft
	var places []int
	for i, r := range results {
		if errors.Is(r.Err, ErrBusy) {
			joined, places = append(joined, drafts[i]), append(places, i)
		}
	}
	if len(joined) == 0 {
		return
	}
	for i, r := range l.write(ctx, joined, true) {
		results[places[i]] = r
	}
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
	return code == "40P01" || code == "40001"
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
	case pgpool.LockTimeout(err) && !wait:
		return ErrBusy
	case pgpool.LockTimeout(err) && l.running(ctx, d):
		return idem.ErrInProgress
	}
	return err
}

// transact judges and writes drafts in one transaction, which is one round trip. The error is a
// *lostError if the transaction is possibly committed. Then the results are those of append.sql, or
// nil if they were lost too. With any other error nothing was written.
func (l *Log) transact(ctx context.Context, drafts []Draft, wait bool) (results []Result, err error) {
	began := time.Now()
	statements := &pgx.Batch{}
	if wait {
		statements.Queue(waitLonger, duplicateTimeout.String())
		statements.Queue(waitForConvos, appendParams(drafts)[:2]...) // convos, senders
	}
	queueAppend(statements, drafts, l.window, false, func(r []Result) { results = r })
	err = pgpool.SendTx(ctx, l.batches, statements, l.faults.Hook(ctx, failpoint.BeforeCommit, nsid.SendMessage))
	if err == nil {
		err = l.faults.Hit(ctx, failpoint.AfterCommit, nsid.SendMessage)
	}
	switch {
	case pgpool.OutcomeUnknown(err):
		return results, &lostError{err, began}
	case err != nil:
		return nil, err
	}
	return results, nil
}

func (l *Log) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		l.log.WarnContext(ctx, "rollback failed", "error", err)
	}
}

// lostError says that the outcome of a COMMIT is unknown.
type lostError struct {
	cause error
	began time.Time // the attempt
}

func (e *lostError) Error() string { return "the outcome of a commit was lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// lookupTimeout bounds the look-up of a transaction's outcome, and its rollback. The time of the
// transaction itself can be over by then.
const lookupTimeout = 5 * time.Second

// resolve looks up the outcome of the drafts of a lost transaction. A refusal needs no commit, so
// it is final. A message was appended if the log has its key with the same content: it makes no
// difference which request appended it. If the log has no such message, the outcome is unknown,
// because the old session is possibly still committing.
//
// results are nil if they were lost too.
func (l *Log) resolve(ctx context.Context, drafts []Draft, results []Result, lost *lostError) []Result {
	if results == nil {
		results = make([]Result, len(drafts))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	found, err := l.lookup(ctx, drafts)
	sinceBegan := time.Since(lost.began) + time.Millisecond
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
			results[i] = Result{Receipt: receipt(&d, r.seq, r.at, r.age > sinceBegan || results[i].Replayed)}
			continue
		}
		results[i] = Result{Err: errors.Join(fmt.Errorf("%w: %w", idem.ErrUnknownOutcome, lost), err)}
	}
	if len(found) > 0 {
		l.log.WarnContext(ctx, "a lost commit was found committed", "nsid", nsid.SendMessage, "messages", len(found))
	}
	return results
}
