package accounts

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
	"mlsd/people/sessions"
)

// Lock makes changes of accounts wait until tx ends. A transaction that changes an account and also
// locks an erasure must call Lock first.
func (s *Store) Lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT FROM account_clock FOR UPDATE`)
	return errs.Wrap(err, "lock the accounts")
}

// StillDue reports whether the data of an account is due for erasure at the time now. It holds the
// lock of account_clock until tx ends, so an account that comes back meanwhile has to wait.
func (s *Store) StillDue(ctx context.Context, tx pgx.Tx, did syntax.DID, now time.Time) (due bool, err error) {
	batch := &pgx.Batch{}
	batch.Queue(`SELECT FROM account_clock FOR UPDATE`)
	// A separate statement, so that it sees the changes for which the lock has waited.
	batch.Queue(`SELECT EXISTS (SELECT FROM accounts WHERE did = $1 AND erase_after <= $2 AND erasing_at IS NULL)`, did,
		now).
		QueryRow(func(row pgx.Row) error { return row.Scan(&due) })
	err = tx.SendBatch(ctx, batch).Close()
	return due, errs.Wrap(err, "read whether an account is to be erased")
}

// BeginErasure makes every node refuse an account, from at most a second after the commit until
// EndErasure. It ends the account's sessions.
func (s *Store) BeginErasure(ctx context.Context, db pgpool.DB, did syntax.DID) error {
	_, err := db.Exec(ctx, `
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		INSERT INTO accounts AS a (did, erasing_at, version) SELECT $1, clock_timestamp(), version FROM clock
		ON CONFLICT (did) DO UPDATE SET erasing_at = coalesce(a.erasing_at, excluded.erasing_at), version = excluded.version`,
		did)
	if err != nil {
		return fmt.Errorf("refuse an account that is being erased: %w", err)
	}
	return sessions.End(ctx, db, did)
}

// EndErasure forgets an account whose data has been erased: what the network said about the
// account, its limit, and its DID, even in the reasons of other accounts' blocks and limits. The
// row remains, under the hash of the DID. It tells the nodes that the account can begin anew, or
// that it is still blocked. The row of a blocked account stays; other rows stay for a day: see
// Sweeps.
func (s *Store) EndErasure(ctx context.Context, tx pgx.Tx, p tombstone.Person) error {
	batch := &pgx.Batch{}
	batch.Queue(`SELECT FROM account_clock FOR UPDATE`)
	batch.Queue(`
		WITH before AS (
			DELETE FROM accounts WHERE did = $1 RETURNING blocked_at, blocked_by, blocked_reason
		)
		UPDATE accounts a
		SET blocked_at = coalesce(a.blocked_at, before.blocked_at), blocked_by = coalesce(a.blocked_by, before.blocked_by),
			blocked_reason = coalesce(a.blocked_reason, before.blocked_reason)
		FROM before WHERE a.did = $2`, tombstone.Hash(p.DID), p.DID)
	batch.Queue(`
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		UPDATE accounts
		SET did = $2, status = 'active', status_source = NULL, status_seq = NULL, status_at = NULL, erase_after = NULL,
			erasing_at = NULL,
			erased_at = clock_timestamp(), blocked_reason = regexp_replace(blocked_reason, $3, $4, 'g'), limit_percent = NULL,
				limit_until = NULL,
			limited_at = NULL, limited_by = NULL, limited_reason = NULL, version = clock.version
		FROM clock WHERE did = $1`, p.DID, tombstone.Hash(p.DID), p.Pattern(), p.Anywhere())
	batch.Queue(`
		UPDATE accounts
		SET blocked_reason = regexp_replace(blocked_reason, $2, $3, 'g'), limited_reason = regexp_replace(limited_reason, $2,
			$3, 'g')
		WHERE (blocked_at IS NOT NULL OR limit_percent IS NOT NULL) AND (strpos(blocked_reason, $1) > 0 OR
			strpos(limited_reason, $1) > 0)`,
		p.DID.String(), p.Pattern(), p.Anywhere())
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "forget an account that was erased")
}

// keepErased is how long the server knows that an account was erased. A node that could not read
// the table for longer loads everything again.
const keepErased = 24 * time.Hour

// Sweeps delete the rows of accounts that were erased a day ago and are not blocked. They also
// forget ended limits, which no node applies any more.
func Sweeps(db *pgxpool.Pool) []worker.Sweep {
	return []worker.Sweep{
		worker.Statement(db, "accounts_erased", `
			DELETE FROM accounts
			WHERE did IN (
				SELECT did FROM accounts
				WHERE did >= $2 AND did < $2 || 'g' AND blocked_at IS NULL AND erased_at < now() - $3::interval
				LIMIT $1 FOR UPDATE SKIP LOCKED)`, tombstone.Prefix, keepErased),
		worker.Statement(db, "accounts_limited", `
			WITH ended AS MATERIALIZED (
				SELECT did FROM accounts WHERE limit_percent IS NOT NULL AND limit_until <= now() LIMIT $1
			), clock AS (
				UPDATE account_clock SET version = version + 1 WHERE EXISTS (SELECT FROM ended) RETURNING version
			)
			UPDATE accounts a
			SET limit_percent = NULL, limit_until = NULL, limited_at = NULL, limited_by = NULL, limited_reason = NULL, version =
				clock.version
			FROM clock WHERE did IN (SELECT did FROM ended) AND limit_until <= now()`),
	}
}
