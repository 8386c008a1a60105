package soak

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The server keeps messages for a day at least, and records and the audit log for longer. So this
// file makes time pass in the database. Rows that are older than keep become so old that the
// server's workers delete them. The workers do what they do in a service that is months old.

// aged are the statements that make rows old. $1 is Config.Keep. A row is made old once.
var aged = []string{
	// The sweep of messages deletes messages after MLSD_MESSAGE_RETENTION, 25 h.
	`UPDATE messages SET created_at = created_at - interval '26 hours'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '20 hours'`,
	// The sweep deletes records a day after their lifetime, which is a week at most.
	`UPDATE idempotency_keys SET created_at = created_at - interval '9 days', started_at = started_at - interval '9 days',
		completed_at = completed_at - interval '9 days', expires_at = expires_at - interval '9 days'
	WHERE state = 'completed' AND created_at < now() - $1::interval AND created_at > now() - interval '8 days'`,
	// The sweep deletes lines of the audit log after 90 days.
	`UPDATE audit_log SET at = at - interval '91 days' WHERE at < now() - $1::interval AND at > now() - interval
			'80 days'`,
	// The sweep of Welcomes expires them after 90 days, and erases their bytes.
	`UPDATE welcomes SET created_at = created_at - interval '91 days', fetched_at = fetched_at - interval '91 days',
		grace_expires_at = grace_expires_at - interval '91 days', confirmed_at = confirmed_at - interval '91 days'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '80 days'`,
	`UPDATE welcome_bodies SET created_at = created_at - interval '91 days'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '80 days'`,
	// The sweep deletes jobs a week after their end.
	`UPDATE push_jobs SET ended_at = ended_at - interval '8 days'
	WHERE ended_at < now() - $1::interval AND ended_at > now() - interval '7 days'`,
}

// age makes rows old at the beginning, when there are none, and every tenth of Config.Keep until stop
// ends. What meets a deadlock is done the next time.
func (s *soak) age(ctx, stop context.Context, db *pgxpool.Pool) {
	for stop.Err() == nil {
		for _, sql := range aged {
			err := testbed.WithoutTriggers(ctx, db, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql, s.c.Keep)
				return err
			})
			if err != nil && !deadlocked(err) {
				s.w.Broken("the run itself: make rows old: %v", err)
			}
		}
		xrpc.Sleep(stop, s.c.Keep/10)
	}
}

// deadlocked reports whether PostgreSQL ended a transaction because it waited for another that
// waited for it.
func deadlocked(err error) bool {
	var failure *pgconn.PgError
	return errors.As(err, &failure) && failure.Code == "40P01"
}
