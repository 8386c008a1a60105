package accounts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
)

const (
	// Whole is the percentage of an account without a limit.
	Whole = 100
	// MaxPercent is the highest percentage that an operator can give an account.
	MaxPercent = 1000
	// maxLimited is how many accounts can have a limit at one time, because every node remembers
	// all of them.
	maxLimited = 10_000
)

// ErrTooManyLimited refuses a new limit once maxLimited accounts have one.
var ErrTooManyLimited = fmt.Errorf("%d accounts have a limit already", maxLimited)

// Limit is an operator's limit on an account. It scales the account's rate of requests and its
// daily quotas.
type Limit struct {
	Percent int        `json:"percent"`         // percentage of what other accounts have: from 1 to MaxPercent
	Until   *time.Time `json:"until,omitempty"` // when the limit ends; nil means when the operator takes it back
	At      time.Time  `json:"at"`
	By      string     `json:"operator"`
	Reason  string     `json:"reason"`
}

// Limit gives an account a limit, which replaces its earlier limit. Every node applies the limit at
// most a second after the commit. lasts is the duration; 0 means until the operator takes the limit
// back. Limit returns the end. Error: ErrTooManyLimited.
func (s *Store) Limit(ctx context.Context, db pgpool.DB, did syntax.DID, percent int, lasts time.Duration, operator,
	reason string) (until *time.Time, err error) {
	err = db.QueryRow(ctx, `
		WITH clock AS (
			UPDATE account_clock SET version = version + 1 RETURNING version
		)
		INSERT INTO accounts (did, limit_percent, limit_until, limited_at, limited_by, limited_reason, version)
		SELECT $1, $2, clock_timestamp() + nullif($3::interval, '0'), clock_timestamp(), $4, $5, version
		FROM clock WHERE (SELECT count(*) FROM accounts WHERE limit_percent IS NOT NULL AND did <> $1) < $6
		ON CONFLICT (did) DO UPDATE SET limit_percent = excluded.limit_percent, limit_until = excluded.limit_until,
			limited_at = excluded.limited_at, limited_by = excluded.limited_by, limited_reason = excluded.limited_reason,
			version = excluded.version
		RETURNING limit_until`, did, percent, lasts, operator, reason, maxLimited).Scan(&until)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrTooManyLimited
	}
	return until, errs.Wrap(err, "limit an account")
}

// Unlimit takes a limit back. was says whether there was a limit.
func (s *Store) Unlimit(ctx context.Context, db pgpool.DB, did syntax.DID) (was bool, err error) {
	tag, err := db.Exec(ctx, `
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		UPDATE accounts
		SET limit_percent = NULL, limit_until = NULL, limited_at = NULL, limited_by = NULL, limited_reason = NULL, version =
			clock.version
		FROM clock WHERE did = $1 AND limit_percent IS NOT NULL`, did)
	return tag.RowsAffected() > 0, errs.Wrap(err, "take the limit of an account back")
}

// limit is a limit in the memory of a gate.
type limit struct {
	percent int
	until   *time.Time // nil means that the limit has no end
}

// Percent returns the account's present percentage of the usual rate of requests and daily quotas.
// It is Whole, unless an operator has set another percentage.
func (g *Gate) Percent(did syntax.DID) int {
	g.mu.RLock()
	l, limited := g.limited[did]
	g.mu.RUnlock()
	if !limited || l.until != nil && !g.cfg.Now().Before(*l.until) {
		return Whole
	}
	return l.percent
}

// readLimited reads all limits. There are few, so that they can be read again after each change of
// an account.
func (g *Gate) readLimited(ctx context.Context) (map[syntax.DID]limit, error) {
	limited := map[syntax.DID]limit{}
	var did syntax.DID
	var l limit
	rows := pgpool.Rows(ctx, g.cfg.DB,
		`SELECT did, limit_percent, limit_until FROM accounts WHERE limit_percent IS NOT NULL`)
	_, err := pgx.ForEachRow(rows, []any{&did, &l.percent, &l.until}, func() error {
		limited[did] = l
		return nil
	})
	return limited, errs.Wrap(err, "read the limits of accounts")
}
