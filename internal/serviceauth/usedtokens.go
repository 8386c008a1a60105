package serviceauth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/gather"
	"mlsd/internal/pgpool"
)

// SweepBatch is how many rows one Sweep deletes at most.
const SweepBatch = 1000

// Database is what UsedTokens asks of one: a *pgxpool.Pool is one.
type Database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
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
	db    Database
	uses  *gather.Calls[use, bool]
	apart atomic.Bool
}

// use is a token, and until when it must be remembered.
type use struct {
	iss syntax.DID
	jti [sha256.Size]byte // hash
	exp time.Time
}

// Bounds of the calls that record uses.
const (
	usesOfCall  = 512
	usesWaiting = 8192
	useTimeout  = 4 * time.Second
)

// NewUsedTokens returns the store on db, which the caller owns.
func NewUsedTokens(db Database) *UsedTokens {
	u := &UsedTokens{db: db}
	u.uses = gather.New(gather.Limits{Batch: usesOfCall, Queue: usesWaiting, Timeout: useTimeout}, u.record)
	return u
}

// Use implements [ReplayStore]. It shares a round trip with the uses that come at the same time. After an error the token may or may
// not be used up, and must be taken as used.
func (u *UsedTokens) Use(ctx context.Context, iss syntax.DID, jti string, exp time.Time) (bool, error) {
	used := use{iss, sha256.Sum256([]byte(jti)), exp}
	if u.apart.Load() {
		fresh, err := u.record(ctx, []use{used})
		if err != nil {
			return false, fmt.Errorf("used_tokens: %w", err)
		}
		return fresh[0], nil
	}
	fresh, err := u.uses.Do(ctx, used)
	if err != nil {
		return false, fmt.Errorf("used_tokens: %w", err)
	}
	return fresh, nil
}

// SetApart has each use from now on take a round trip of its own, or share one again, which is how it begins. It is there to be
// measured beside.
func (u *UsedTokens) SetApart(apart bool) { u.apart.Store(apart) }

// record notes the uses and says of each whether it is the first. The primary key decides: of inserts at the same time, on any node,
// one gets a row and the others wait for it and get none. An old row that was not swept yet counts as a use too. The order is the
// same in all calls, so that they cannot wait for each other.
func (u *UsedTokens) record(ctx context.Context, uses []use) ([]bool, error) {
	issuers := make(pgpool.Array[pgpool.Text], len(uses))
	hashes := make(pgpool.Array[pgpool.Bytes], len(uses))
	ends := make(pgpool.Array[pgpool.Time], len(uses))
	for i := range uses {
		issuers[i], hashes[i], ends[i] = pgpool.Text(uses[i].iss), uses[i].jti[:], pgpool.Time(uses[i].exp)
	}
	rows, err := u.db.Query(ctx, `
		INSERT INTO used_tokens (iss, jti_hash, expires_at)
		SELECT * FROM unnest($1::text[], $2::bytea[], $3::timestamptz[]) AS use (iss, jti_hash, expires_at)
		ORDER BY iss COLLATE "C", jti_hash
		ON CONFLICT DO NOTHING
		RETURNING iss, jti_hash`,
		issuers, hashes, ends)
	if err != nil {
		return nil, err
	}
	type token struct {
		iss syntax.DID
		jti [sha256.Size]byte
	}
	noted := make(map[token]bool, len(uses))
	var iss syntax.DID
	var hash []byte
	if _, err := pgx.ForEachRow(rows, []any{&iss, &hash}, func() error {
		noted[token{iss, [sha256.Size]byte(hash)}] = true
		return nil
	}); err != nil {
		return nil, err
	}
	fresh := make([]bool, len(uses))
	for i := range uses {
		t := token{uses[i].iss, uses[i].jti}
		fresh[i] = noted[t]
		delete(noted, t) // another use of it in the same call is not the first
	}
	return fresh, nil
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
