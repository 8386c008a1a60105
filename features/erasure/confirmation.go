package erasure

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

const (
	// confirmationLife is how long a confirmation token is good.
	confirmationLife = 10 * time.Minute
	// keepUsed is how long a repeated request with a used token finds its erasure. It begins when
	// the token would have expired.
	keepUsed = 7 * 24 * time.Hour
)

// ErrConfirmation says that a confirmation token is not the newest token of the account, or has
// expired.
var ErrConfirmation = errors.New("the confirmationToken is not the newest one of this account, or more than ten " +
	"minutes old: " +
	"ask for another, without confirmationToken and with a new idempotencyKey")

// Begun is an erasure that its account has confirmed.
type Begun struct {
	ID uuid.UUID
	At time.Time
}

// AskToConfirm returns the token with which the account can begin its erasure. An earlier token
// becomes invalid.
func (s *Store) AskToConfirm(ctx context.Context, tx pgx.Tx, did syntax.DID) (token string, expires time.Time,
	err error) {
	token = rand.Text()
	err = tx.QueryRow(ctx, `
		INSERT INTO erasure_confirmations (hash, did, expires_at)
		VALUES ($1, $2, date_trunc('milliseconds', clock_timestamp() + $3::interval))
		ON CONFLICT (did) WHERE did IS NOT NULL DO UPDATE SET hash = excluded.hash, expires_at = excluded.expires_at
		RETURNING expires_at`, confirmationHash(did, token), did, confirmationLife).Scan(&expires)
	return token, expires, errs.Wrap(err, "store a confirmation")
}

// Confirm uses up the token and begins the erasure. If an erasure of the account is already
// running, Confirm returns that erasure. If two requests use one token, the second waits for the
// first and gets the same erasure. Error: ErrConfirmation.
func (s *Store) Confirm(ctx context.Context, tx pgx.Tx, did syntax.DID, token string) (b Begun, err error) {
	hash, used, expired := confirmationHash(did, token), (*uuid.UUID)(nil), false
	err = tx.QueryRow(ctx, `
		SELECT erasure, expires_at <= clock_timestamp() FROM erasure_confirmations WHERE hash = $1 FOR UPDATE`,
		hash).Scan(&used, &expired)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return b, ErrConfirmation
	case err != nil:
		return b, fmt.Errorf("read a confirmation: %w", err)
	case used != nil:
		return s.Confirmed(ctx, tx, did, token)
	case expired:
		return b, ErrConfirmation
	}
	id, _, err := s.Begin(ctx, tx, did, ByAccount, "the account has asked for it")
	if err != nil {
		return b, err
	}
	if _, err := tx.Exec(ctx, `UPDATE erasure_confirmations SET did = NULL, erasure = $2 WHERE hash = $1`, hash,
		id); err != nil {
		return b, fmt.Errorf("use a confirmation up: %w", err)
	}
	return s.Confirmed(ctx, tx, did, token)
}

// Confirmed returns the erasure that the account has begun with the token. Error: ErrConfirmation.
func (s *Store) Confirmed(ctx context.Context, db pgpool.DB, did syntax.DID, token string) (b Begun, err error) {
	err = db.QueryRow(ctx, `
		SELECT e.id, e.begun_at FROM erasure_confirmations c JOIN erasures e ON e.id = c.erasure WHERE c.hash = $1`,
		confirmationHash(did, token)).Scan(&b.ID, &b.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return b, ErrConfirmation
	}
	return b, errs.Wrap(err, "look for a confirmed erasure")
}

// confirmationHash returns the hash of a token for one account. It is as random as the token, so
// the row of a used token does not reveal whose token it was.
func confirmationHash(did syntax.DID, token string) []byte {
	hash := sha256.Sum256([]byte(did.String() + " " + token))
	return hash[:]
}

// eraseConfirmations deletes the account's unused token.
func eraseConfirmations(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM erasure_confirmations WHERE did = $1`, p.DID)
	return tag.RowsAffected(), errs.Wrap(err, "delete a confirmation")
}

// Sweep deletes tokens that have expired unused, or were used a week ago.
func Sweep(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "erasure_confirmations", `
		DELETE FROM erasure_confirmations WHERE hash IN (
			SELECT hash FROM erasure_confirmations
			WHERE expires_at < now() AND (did IS NOT NULL OR expires_at < now() - $2::interval)
			LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepUsed)
}
