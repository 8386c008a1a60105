package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
)

// LockedConvo is the state of a convo whose row the caller's transaction has locked.
type LockedConvo struct {
	GroupID []byte
	Epoch   int64
	LastSeq int64
	Closed  bool
}

// AppendLocked appends one message in the caller's transaction, which has locked the convo. The
// caller has decided that the sender may send it, without being a member. The judge decides
// everything else, and takes a message of the convo's epoch only. It does not use d.Token.
//
// Errors: *idem.ConflictError, ErrConvoClosed, ErrWrongGroup, *EpochMismatchError.
func AppendLocked(ctx context.Context, tx pgx.Tx, d Draft, convo LockedConvo) (Receipt, error) {
	d.Token = nil
	f := facts{
		groupID: convo.GroupID, epoch: convo.Epoch, lastSeq: convo.LastSeq, closed: convo.Closed, membership: current, locked: true,
	}
	var at time.Time
	if err := tx.QueryRow(ctx, `SELECT date_trunc('milliseconds', clock_timestamp())`).Scan(&at); err != nil {
		return Receipt{}, fmt.Errorf("read the time: %w", err)
	}
	r, err := recordedUnder(ctx, tx, d)
	if err != nil {
		return Receipt{}, err
	}
	f.recorded = r
	j := newJudge(0, at)
	result := j.judge(&d, &f)
	if result.Err != nil || len(j.entries) == 0 {
		return result.Receipt, result.Err
	}
	if _, err := tx.Exec(ctx, appendEntries, entryParams(j.entries, at)...); err != nil {
		return Receipt{}, fmt.Errorf("append the message: %w", err)
	}
	return result.Receipt, nil
}

// HasKey reports whether the log has a message of d's sender under d's key.
func HasKey(ctx context.Context, q pgpool.Queryer, d Draft) (bool, error) {
	r, err := recordedUnder(ctx, q, d)
	return r != nil, err
}

// recordedUnder returns the message that the log has under d's key, or nil.
func recordedUnder(ctx context.Context, q pgpool.Queryer, d Draft) (*recorded, error) {
	var r recorded
	var at pgtype.Timestamptz
	var same bool
	err := q.QueryRow(ctx, `
		SELECT seq, created_at, request_hash, epoch, body = $4, embed_type, embed_uri FROM messages
		WHERE convo_id = $1 AND sender_did = $2 AND idempotency_key = $3 AND kind <> 3`, d.ConvoID, d.Sender, d.Key, d.Body).
		Scan(&r.seq, &at, &r.hash, &r.epoch, &same, &r.embedType, &r.embedURI)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look the key up: %w", err)
	}
	r.at = at.Time
	r.sameBody = func([]byte) bool { return same }
	return &r, nil
}
