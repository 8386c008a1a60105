package serviceauth

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

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
//		token      uuid        PRIMARY KEY, -- its TokenID
//		expires_at timestamptz NOT NULL
//	)
//
// Unlogged, so that an insert waits for no disk. The price is that a crash of
// the database, or a failover to a standby, forgets the tokens in use: each could
// then be used once more until it expires, and the idempotency record of the
// write it carried is what keeps that from having an effect.
type UsedTokens struct {
	db   Database
	uses *gather.Calls[use, bool]
}

// use is a token, and until when it must be remembered.
type use struct {
	token TokenID
	exp   time.Time
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
func (u *UsedTokens) Use(ctx context.Context, id TokenID, exp time.Time) (bool, error) {
	fresh, err := u.uses.Do(ctx, use{id, exp})
	if err != nil {
		return false, fmt.Errorf("used_tokens: %w", err)
	}
	return fresh, nil
}

// NoteUses is the part of a statement that uses tokens up. It reads uses (token, expires_at) and returns the tokens that were not used
// before; whoever has an effect in the same transaction must have none for the others. The primary key decides: of inserts at the
// same time, on any node, one gets a row and the others wait for it and get none. An old row that was not swept yet counts as a use
// too. A token that expired longer ago than a request takes counts as used: its row may have been swept already. The uses must be in the order of their tokens ([CompareTokens]), so that transactions cannot wait for each other.
const NoteUses = `
	INSERT INTO used_tokens (token, expires_at)
	SELECT token, expires_at FROM uses WHERE expires_at > clock_timestamp() - interval '30 seconds'
	ON CONFLICT DO NOTHING
	RETURNING token`

// CompareTokens is the order in which tokens are used up.
func CompareTokens(a, b TokenID) int { return bytes.Compare(a[:], b[:]) }

// record notes the uses and says of each whether it is the first.
func (u *UsedTokens) record(ctx context.Context, uses []use) ([]bool, error) {
	tokens := make(pgpool.Array[pgpool.UUID], len(uses))
	ends := make(pgpool.Array[pgpool.Time], len(uses))
	sorted := slices.SortedFunc(slices.Values(uses), func(a, b use) int { return CompareTokens(a.token, b.token) })
	for i, s := range sorted {
		tokens[i], ends[i] = pgpool.UUID(s.token), pgpool.Time(s.exp)
	}
	rows, err := u.db.Query(ctx, `
		WITH uses AS (
			SELECT * FROM unnest($1::uuid[], $2::timestamptz[]) AS u (token, expires_at)
		)`+NoteUses, tokens, ends)
	if err != nil {
		return nil, err
	}
	noted := make(map[TokenID]bool, len(uses))
	var token [16]byte
	if _, err := pgx.ForEachRow(rows, []any{&token}, func() error {
		noted[token] = true
		return nil
	}); err != nil {
		return nil, err
	}
	fresh := make([]bool, len(uses))
	for i, s := range uses {
		fresh[i] = noted[s.token]
		delete(noted, s.token) // another use of it in the same call is not the first
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
