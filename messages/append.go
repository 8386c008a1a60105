package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// maxAttempts is how often a transaction is tried if concurrent transactions make it fail. Attempts
// after a failure that usedMeanwhile reports are not bounded.
const maxAttempts = 4

// write appends drafts in one transaction, and returns their results. If another transaction has
// locked a convo, the result is ErrBusy at once. If wait is true, write waits for the lock, and the
// result is ErrHeld after the lock timeout.
func (l *Log) write(ctx context.Context, drafts []Draft, wait bool) []Result {
	takeQuota(drafts)
	results, err := l.attempt(ctx, drafts, wait)
	for attempt := 1; usedMeanwhile(err) || attempt < maxAttempts && worthAnotherTry(err); attempt++ {
		// The pause is random, so that transactions that collided do not collide again. If ctx has
		// ended, transact returns its error.
		worker.Pause(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond))
		results, err = l.attempt(ctx, drafts, wait)
	}
	var lost *lostError
	switch {
	case errors.As(err, &lost):
		results = l.resolve(ctx, drafts, results, lost)
	case pgpool.LockTimeout(err) && wait:
		results = failed(drafts, ErrHeld)
	case pgpool.LockTimeout(err):
		results = failed(drafts, ErrBusy)
	case err != nil:
		results = failed(drafts, err)
	}
	returnUnused(drafts, results)
	l.count(results)
	if wait && (err == nil || lost != nil) {
		l.writeJoined(ctx, drafts, results)
	}
	return results
}

// failed returns err as the result of each draft.
func failed(drafts []Draft, err error) []Result {
	results := make([]Result, len(drafts))
	for i := range results {
		results[i].Err = err
	}
	return results
}

// takeQuota counts the drafts against their quotas, except drafts with an invalid asset. It runs
// before judge and only records a refusal, because judge gives every other answer first.
func takeQuota(drafts []Draft) {
	for i := range drafts {
		d := &drafts[i]
		if d.refusal = d.InvalidAsset; d.refusal == nil {
			d.refusal = d.Quota.TakeMessage(d.ConvoID, len(d.Body))
		}
	}
}

// returnUnused returns the quota of drafts that stored nothing, and of drafts whose outcome is not
// known.
func returnUnused(drafts []Draft, results []Result) {
	for i, r := range results {
		if d := &drafts[i]; r.Err != nil || r.Replayed {
			d.Quota.Return()
		} else {
			d.Quota.StoredMessage(d.ConvoID, len(d.Body))
		}
	}
}

// writeJoined writes drafts again whose result is ErrBusy although write waited for locks. Their
// senders joined after lockConvos had read the members.
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

// worthAnotherTry reports whether a deadlock or a serialization failure ended the transaction. The
// same transaction may succeed if it is tried again.
func worthAnotherTry(err error) bool {
	code := pgpool.Code(err)
	return code == "40P01" || code == "40001"
}

// usedMeanwhile reports whether another transaction used up a token after this one had read that it
// was fresh. The next attempt reads that it is used.
func usedMeanwhile(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.ConstraintName == usedTokensKey
}

// attempt writes drafts in one transaction: a message that is alone by its own statements, if they
// append it.
func (l *Log) attempt(ctx context.Context, drafts []Draft, wait bool) ([]Result, error) {
	if !wait && l.canGoAlone(drafts) {
		if r, appended, err := l.alone(ctx, &drafts[0]); appended || err != nil {
			return []Result{r}, err
		}
	}
	return l.transact(ctx, drafts, wait)
}

// transact judges and writes drafts in one transaction of two round trips. After a *lostError the
// transaction may be committed, and the results are those that a commit would have given. After any
// other error nothing was written.
func (l *Log) transact(ctx context.Context, drafts []Draft, wait bool) ([]Result, error) {
	began := time.Now()
	t := newTransaction(drafts, l.window)
	reads := &pgx.Batch{}
	lock := lockFreeConvos
	if wait {
		reads.Queue(waitLonger, duplicateTimeout.String())
		lock = lockConvos
	}
	t.queueReads(reads, lock, t.convoIDs, t.senders)
	err := pgpool.ReadThenWrite(ctx, l.batches, reads, pgpool.Writes{SQL: t.writeStatements(), Queue: t.queueWrites},
		l.faults.Hook(ctx, failpoint.BeforeCommit, nsid.SendMessage))
	if err == nil || pgpool.OutcomeUnknown(err) {
		for _, i := range t.appended {
			l.tracer.Wrote(drafts[i].ConvoID, t.results[i].Seq, drafts[i].span)
		}
	}
	if len(t.appended) > 0 && l.stream != nil {
		l.stream.Wake()
	}
	if err == nil {
		err = l.faults.Hit(ctx, failpoint.AfterCommit, nsid.SendMessage)
	}
	if pgpool.OutcomeUnknown(err) {
		err = &lostError{err, began}
	}
	return t.results, err
}

// AppendEntitled appends one message in the caller's transaction, and locks the convo. The caller
// has decided that the sender, who need not be a member, may send it. The message must be of the
// convo's epoch. d.Token is not used up.
//
// Errors: ErrConvoNotFound, *idem.ConflictError, ErrConvoClosed, ErrWrongGroup,
// *EpochMismatchError, *quota.ExceededError. If the transaction fails, the caller returns the
// quota.
func AppendEntitled(ctx context.Context, tx pgx.Tx, d Draft) (Receipt, error) {
	d.Token = nil
	drafts := []Draft{d}
	takeQuota(drafts)
	t := newTransaction(drafts, 0)
	t.entitled = true
	reads, writes := &pgx.Batch{}, &pgx.Batch{}
	t.queueReads(reads, lockConvo, d.ConvoID)
	if err := tx.SendBatch(ctx, reads).Close(); err != nil {
		return Receipt{}, fmt.Errorf("read what a message is judged by: %w", err)
	}
	t.queueWrites(writes)
	if err := tx.SendBatch(ctx, writes).Close(); err != nil {
		return Receipt{}, fmt.Errorf("append a message: %w", err)
	}
	returnUnused(drafts, t.results)
	return t.results[0].Receipt, t.results[0].Err
}
