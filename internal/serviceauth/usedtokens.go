package serviceauth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgconn"
)

// SweepBatch is how many rows one Sweep deletes at most.
const SweepBatch = 1000

// Execer is what UsedTokens asks of a database: a *pgxpool.Pool is one.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// UsedTokens is the [ReplayStore] that all nodes share, in the table
//
//	CREATE UNLOGGED TABLE used_tokens (
//		iss        text        NOT NULL,
//		jti_hash   bytea       NOT NULL, -- SHA-256 of the jti: callers choose its length and content
//		expires_at timestamptz NOT NULL,
//		PRIMARY KEY (iss, jti_hash)
//	)
//
// Unlogged, so that an insert waits for no disk. The price is that a crash of
// the database, or a failover to a standby, forgets the tokens in use: each could
// then be used once more until it expires, and the idempotency record of the
// write it carried is what keeps that from having an effect.
type UsedTokens struct {
	db Execer
}

// NewUsedTokens returns the store on db, which the caller owns.
func NewUsedTokens(db Execer) *UsedTokens { return &UsedTokens{db: db} }

// Use implements [ReplayStore]. The primary key decides: of inserts at the same
// time, on any node, one gets a row and the others wait for it and get none. An
// old row that was not swept yet counts as a use too. After an error the token
// may or may not be used up, and must be taken as used.
func (u *UsedTokens) Use(ctx context.Context, iss syntax.DID, jti string, exp time.Time) (bool, error) {
	hash := sha256.Sum256([]byte(jti))
	tag, err := u.db.Exec(ctx, `
		INSERT INTO used_tokens (iss, jti_hash, expires_at)
		VALUES ($1, $2, $3)
		ON CONFLICT DO NOTHING`,
		iss.String(), hash[:], exp)
	if err != nil {
		return false, fmt.Errorf("used_tokens: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// Sweep deletes up to SweepBatch rows of expired tokens and returns how many.
// The worker that calls it calls again at once after a full batch. By the
// database's clock, a minute late: a node whose clock is behind must not accept
// a token again.
func (u *UsedTokens) Sweep(ctx context.Context) (int64, error) {
	tag, err := u.db.Exec(ctx, `
		DELETE FROM used_tokens WHERE ctid IN (
			SELECT ctid FROM used_tokens
			WHERE expires_at < clock_timestamp() - interval '1 minute'
			LIMIT $1
			FOR UPDATE SKIP LOCKED)`,
		SweepBatch)
	if err != nil {
		return 0, fmt.Errorf("sweeping used_tokens: %w", err)
	}
	return tag.RowsAffected(), nil
}
