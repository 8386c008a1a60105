package reports

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/people/quota"
)

// Report is what a member reports.
type Report struct {
	Convo    uuid.UUID
	Reporter syntax.DID
	Reason   Reason
	KeyID    string
	Sealed   []byte
}

// Receipt is what the reporter gets.
type Receipt struct {
	ID       uuid.UUID
	At       time.Time // in whole milliseconds
	Repeated bool      // the same bytes were reported before: this is the first receipt
}

// sumOpen reads only the index abuse_reports_open, once the rows were vacuumed.
const sumOpen = `SELECT coalesce(sum(greatest(size, $1::integer)), 0)::bigint FROM abuse_reports WHERE state = 'open'`

// Add stores a report that is sealed to key. key is nil if the operator has no key. The reporter
// must be a member of the convo, even one that has not accepted it, or must have left it less than
// FormerMember ago. most is the limit for the sum of the open reports, in bytes. 0 means no limit.
// A repeated report waits for no other report. Errors besides the database's: ErrDisabled,
// messages.ErrConvoNotFound, messages.ErrNotMember, ErrUnknownKey, ErrNotSealed, ErrReason,
// *quota.ExceededError.
func Add(ctx context.Context, tx pgx.Tx, key *PublicKey, r Report, most int64) (Receipt, error) {
	if key == nil {
		return Receipt{}, ErrDisabled
	}
	if err := mayReport(ctx, tx, r.Convo, r.Reporter); err != nil {
		return Receipt{}, err
	}
	switch {
	case r.KeyID != key.ID():
		return Receipt{}, ErrUnknownKey
	case len(r.Sealed) < encSize+tagSize || len(r.Sealed) > MaxSealed:
		return Receipt{}, ErrNotSealed
	case !r.Reason.Known():
		return Receipt{}, ErrReason
	}
	digest := sha256.Sum256(r.Sealed)
	binding := Binding(r.Convo, r.Reporter)
	if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated {
		return first, err
	}
	if err := pgpool.LockReports.Wait(ctx, tx, ""); err != nil {
		return Receipt{}, err
	}
	// The same report may have been committed while this one was waiting.
	if first, err := lookUp(ctx, tx, binding, digest[:]); err != nil || first.Repeated {
		return first, err
	}
	if most != 0 {
		var open int64
		err := tx.QueryRow(ctx, sumOpen, minCharge).Scan(&open)
		if err != nil {
			return Receipt{}, fmt.Errorf("count the reports: %w", err)
		}
		if open+max(int64(len(r.Sealed)), minCharge) > most {
			return Receipt{}, quota.TooManyReports()
		}
	}
	return insert(ctx, tx, r, binding, digest[:])
}

// lookUp returns the receipt of a report, or the zero value if the report is not stored.
func lookUp(ctx context.Context, tx pgx.Tx, binding, digest []byte) (first Receipt, err error) {
	err = tx.QueryRow(ctx, `SELECT id, reported_at, true FROM abuse_reports WHERE binding = $1 AND digest = $2`, binding,
		digest).
		Scan(&first.ID, &first.At, &first.Repeated)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Receipt{}, fmt.Errorf("look for the same report: %w", err)
	}
	return first, nil
}

func insert(ctx context.Context, tx pgx.Tx, r Report, binding, digest []byte) (Receipt, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Receipt{}, fmt.Errorf("name a report: %w", err)
	}
	got := Receipt{ID: id}
	err = tx.QueryRow(ctx, `
		INSERT INTO abuse_reports (id, convo_id, reporter, reason, key_id, binding, digest, sealed, reported_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, date_trunc('milliseconds', clock_timestamp()))
		RETURNING reported_at`, id, r.Convo, r.Reporter, r.Reason, r.KeyID, binding, digest, r.Sealed).Scan(&got.At)
	return got, errs.Wrap(err, "keep a report")
}

// mayReport returns an error unless did may report the convo.
func mayReport(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID) error {
	var may bool
	err := tx.QueryRow(ctx, `
		SELECT left_at IS NULL OR left_at > clock_timestamp() - $3::interval FROM members WHERE convo_id = $1 AND did = $2`,
		convo, did, FormerMember).Scan(&may)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return messages.ErrConvoNotFound
	case err != nil:
		return fmt.Errorf("look for the reporter: %w", err)
	case !may:
		return messages.ErrNotMember
	}
	return nil
}
