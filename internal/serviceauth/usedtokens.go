package serviceauth

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/batch"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

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
	db   pgpool.DB
	uses *batch.Batcher[use, error]
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
func NewUsedTokens(db pgpool.DB) *UsedTokens {
	u := &UsedTokens{db: db}
	u.uses = batch.New(batch.Limits{Batch: usesOfCall, Queue: usesWaiting, Timeout: useTimeout}, u.record)
	return u
}

// Use implements [ReplayStore]. It shares a round trip with the uses that come at the same time.
// After an error the token may or may not be used up, and must be taken as used.
func (u *UsedTokens) Use(ctx context.Context, id TokenID, exp time.Time) error {
	refusal, err := u.uses.Do(ctx, use{id, exp})
	if err != nil {
		return errs.Wrap(err, "used_tokens")
	}
	return refusal
}

// LateUse is how long after its expiration a token may still be used, by the database's clock: as
// long as a request takes. Later its row may be swept, so the use is refused with ErrLate.
const LateUse = 30 * time.Second

// record uses tokens up. For each it returns nil, ErrReplayed or ErrLate. The primary key decides:
// of inserts at the same time, on any node, one gets a row, and the others wait for it and get
// none. Tokens are inserted in their order, so that transactions cannot wait for each other.
func (u *UsedTokens) record(ctx context.Context, uses []use) ([]error, error) {
	tokens := make(pgpool.Array[pgpool.UUID], len(uses))
	ends := make(pgpool.Array[pgpool.Time], len(uses))
	for i, s := range uses {
		tokens[i], ends[i] = pgpool.UUID(s.token), pgpool.Time(s.exp)
	}
	rows := pgpool.Rows(ctx, u.db, `
		WITH given AS MATERIALIZED (
			SELECT token, expires_at, expires_at <= clock_timestamp() - $3::interval AS late
			FROM unnest($1::uuid[], $2::timestamptz[]) AS u (token, expires_at)
		), used AS (
			INSERT INTO used_tokens (token, expires_at) SELECT token, expires_at FROM given WHERE NOT late ORDER BY token
			ON CONFLICT DO NOTHING RETURNING token
		)
		SELECT token, false FROM used UNION ALL SELECT token, true FROM given WHERE late`, tokens, ends, LateUse)
	first, tooLate := make(map[TokenID]bool, len(uses)), make(map[TokenID]bool)
	var token [16]byte
	var late bool
	if _, err := pgx.ForEachRow(rows, []any{&token, &late}, func() error {
		if late {
			tooLate[token] = true
		} else {
			first[token] = true
		}
		return nil
	}); err != nil {
		return nil, err
	}
	refusals := make([]error, len(uses))
	for i, s := range uses {
		switch {
		case tooLate[s.token]:
			refusals[i] = ErrLate
		case !first[s.token]:
			refusals[i] = ErrReplayed
		}
		delete(first, s.token) // another use of the same token in uses is not the first
	}
	return refusals, nil
}

// SweepTokens deletes expired tokens, a minute late: a node whose clock is behind must not accept a
// token again.
func SweepTokens(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "used_tokens", `
		DELETE FROM used_tokens WHERE ctid IN (
			SELECT ctid FROM used_tokens WHERE expires_at < now() - interval '1 minute' LIMIT $1 FOR UPDATE SKIP LOCKED)`)
}
