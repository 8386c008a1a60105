package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
)

// lostError says that the outcome of a COMMIT is unknown.
type lostError struct {
	cause error
	began time.Time // when the attempt began
}

func (e *lostError) Error() string { return "the outcome of a commit was lost: " + e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// lookupTimeout bounds the look-up of a transaction's outcome. It is separate from the timeout of
// the batch, which may have passed by then.
const lookupTimeout = 5 * time.Second

// resolve looks up the outcome of the drafts of a lost transaction. A refusal is final, unless it
// is a conflict with a message of the same transaction, because that message may not have been
// appended. A message was appended if the log has the same content under its key, whichever request
// appended it. Otherwise the outcome is unknown, because the old session may still be committing.
func (l *Log) resolve(ctx context.Context, drafts []Draft, results []Result, lost *lostError) []Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	found, err := lookup(ctx, l.db, drafts)
	sinceBegan := time.Since(lost.began) + time.Millisecond
	missing := map[requestKey]bool{} // keys of messages that the transaction may not have appended
	for i := range drafts {
		if _, ok := found[i]; !ok && results[i].Err == nil && !results[i].Replayed {
			missing[drafts[i].requestKey()] = true
		}
	}
	for i, d := range drafts {
		if conflict := errors.As(results[i].Err, new(*idem.ConflictError)); results[i].Err != nil &&
			!(conflict && missing[d.requestKey()]) {
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

// found is a message that the log has under a draft's key, with the draft's content.
type found struct {
	seq int64
	at  time.Time
	age time.Duration // age when the database answered; up to 1 ms too long, because at is cut to milliseconds
}

// lookup returns what the log has under the keys of drafts, by the index of the draft.
func lookup(ctx context.Context, q pgpool.Queryer, drafts []Draft) (map[int]found, error) {
	t := newTransaction(drafts, 0)
	rows, err := q.Query(ctx, `
		SELECT d.ord - 1, r.seq, r.created_at, clock_timestamp() - r.created_at
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY AS d (convo_id, sender_did, key, hash,
			ord)
		CROSS JOIN LATERAL (
			SELECT seq, created_at, request_hash FROM messages
			WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1
		) r
		WHERE r.request_hash = d.hash`, t.convoIDs, t.senders, t.keys, t.hashes)
	all := map[int]found{}
	if err == nil {
		var i int
		var f found
		_, err = pgx.ForEachRow(rows, []any{&i, &f.seq, &f.at, &f.age}, func() error {
			all[i] = f
			return nil
		})
	}
	return all, errs.Wrap(err, "look the keys up")
}

// HasKey reports whether the log has a message of d's sender under d's key.
func HasKey(ctx context.Context, q pgpool.Queryer, d Draft) (has bool, err error) {
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM messages WHERE convo_id = $1 AND sender_did = $2 AND idempotency_key = $3 AND kind <> 3)`,
		d.ConvoID, d.Sender, d.Key).Scan(&has)
	return has, errs.Wrap(err, "look the key up")
}
