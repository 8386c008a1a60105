package sessions

import (
	"context"
	_ "embed"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

// End ends all sessions of accounts, on every node within trustFor of the commit. It holds the lock
// of session_clock until the transaction ends, so call it at the end of the transaction.
func End(ctx context.Context, db pgpool.Execer, dids ...syntax.DID) error {
	return end(ctx, db, dids, nil)
}

// EndDevice is End for one device of an account.
func EndDevice(ctx context.Context, db pgpool.Execer, did syntax.DID, device string) error {
	return end(ctx, db, []syntax.DID{did}, &device)
}

func end(ctx context.Context, db pgpool.Execer, dids []syntax.DID, device *string) error {
	if len(dids) == 0 {
		return nil
	}
	_, err := db.Exec(ctx, `
		WITH open AS MATERIALIZED (
			SELECT id FROM sessions WHERE did = ANY($1::text[]) AND ($2::text IS NULL OR device_id = $2) AND ended_version IS
				NULL
		), clock AS (
			UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM open) RETURNING version
		)
		UPDATE sessions SET ended_version = clock.version
		FROM clock WHERE id IN (SELECT id FROM open) AND ended_version IS NULL`, dids, device)
	return errs.Wrap(err, "end sessions")
}

// EndSession is End for one session. If the database has lost the session's row, EndSession adds a
// row that says that the session has ended.
func EndSession(ctx context.Context, db pgpool.Execer, session Session) error {
	_, err := db.Exec(ctx, `
		WITH clock AS (
			UPDATE session_clock SET version = version + 1 RETURNING version
		)
		INSERT INTO sessions AS s (id, did, device_id, account_key, key_version, signed_with, issued_at, expires_at, ends_at,
			ended_version)
		SELECT $1, $2, $3, '', 0, 0, clock_timestamp(), $4, $4, version FROM clock
		ON CONFLICT (id) DO UPDATE SET ended_version = coalesce(s.ended_version, excluded.ended_version)`,
		session.ID, session.DID, session.Device, session.Expires)
	return errs.Wrap(err, "end a session")
}

// Ended says that a session has ended. This node refuses the session from now on, and soon reads
// which other sessions have ended.
func (s *Service) Ended(session Session) {
	s.mu.Lock()
	if s.ended != nil {
		s.ended[session.ID] = session.Expires.Add(bearerLife + keepExpired)
	}
	s.mu.Unlock()
	s.Wake.Send()
}

// endReplacedSQL ends sessions whose accounts have got another key.
//
//go:embed end_replaced.sql
var endReplacedSQL string

// endReplaced ends sessions if the key of their account was forgotten or replaced lately, after the
// session was bought. In the same round trip it reads the version of the sessions.
func (s *Service) endReplaced(ctx context.Context, lately time.Duration) (version int64, err error) {
	var both pgx.Batch
	both.Queue(endReplacedSQL, lately)
	both.Queue(`SELECT version FROM session_clock`).QueryRow(func(row pgx.Row) error { return row.Scan(&version) })
	err = s.cfg.DB.SendBatch(ctx, &both).Close()
	return version, errs.Wrap(err, "end the sessions of replaced keys, and read the version of the sessions")
}

// Erase removes the account from up to limit ended sessions of the account, and returns how many.
// Their rows stay until their bearers have expired, so that every node knows that they have ended.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		WITH clock AS (
			UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM sessions WHERE did = $1) RETURNING version
		)
		UPDATE sessions s SET did = NULL, device_id = NULL, account_key = '', ended_version = coalesce(s.ended_version,
			clock.version)
		FROM clock WHERE s.id IN (SELECT id FROM sessions WHERE did = $1 LIMIT $2)`, p.DID, limit)
	return tag.RowsAffected(), errs.Wrap(err, "erase sessions")
}

// Sweep deletes the rows of sessions whose last bearers have expired.
func Sweep(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "sessions", `
		DELETE FROM sessions WHERE id IN (
			SELECT id FROM sessions WHERE expires_at < now() - $2::interval LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepExpired)
}
