package messages

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// AppendLocked appends one message in the caller's transaction, which has locked the convo. The
// caller has decided that the sender may send it, without being a member. append.sql decides
// everything else, and takes a message of the convo's epoch only. It does not use d.Token.
//
// Errors: *idem.ConflictError, ErrConvoClosed, ErrWrongGroup, *EpochMismatchError,
// *quota.ExceededError. If the transaction fails, the caller returns the quota.
func AppendLocked(ctx context.Context, tx pgx.Tx, d Draft) (Receipt, error) {
	d.Token = nil
	drafts := []Draft{d}
	takeQuota(drafts)
	var results []Result
	batch := &pgx.Batch{}
	queueAppend(batch, drafts, 0, true, func(r []Result) { results = r })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Receipt{}, err
	}
	returnUnused(drafts, results)
	return results[0].Receipt, results[0].Err
}

// HasKey reports whether the log has a message of d's sender under d's key.
func HasKey(ctx context.Context, q pgpool.Queryer, d Draft) (has bool, err error) {
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM messages WHERE convo_id = $1 AND sender_did = $2 AND idempotency_key = $3 AND kind <> 3)`,
		d.ConvoID, d.Sender, d.Key).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look the key up: %w", err)
	}
	return has, nil
}
