package testbed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file makes time pass in the server's private database, which no client can do. So a scenario
// need not wait for a minute or a week.

// inDatabase runs f in a transaction of the server's database. No trigger fires, because these
// changes are not the server's.
func (p *Proc) inDatabase(ctx context.Context, f func(pgx.Tx) error) error {
	address, err := p.database()
	if err != nil {
		return fmt.Errorf("server: database: %w", err)
	}
	return InDatabase(ctx, address, func(db *pgx.Conn) error {
		return WithoutTriggers(ctx, db, f)
	})
}

// WithoutTriggers runs f in a transaction in which no trigger fires.
func WithoutTriggers(ctx context.Context, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		return f(tx)
	})
}

// age runs a statement that moves times into the past, and returns how many rows it changed.
func (p *Proc) age(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = p.inDatabase(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

// EndLeases ends the leases of dead workers, and makes their jobs due.
func (p *Proc) EndLeases(ctx context.Context) error {
	_, leases := p.age(ctx, `
		UPDATE idempotency_keys SET lease_expires_at = lease_expires_at - interval '1 hour' WHERE state = 'processing'`)
	_, jobs := p.age(ctx, `
		UPDATE push_jobs SET next_attempt_at = next_attempt_at - interval '2 hours' WHERE state IN ('pending', 'sending')`)
	_, invitations := p.age(ctx, `
		UPDATE sent_invitations SET next_attempt_at = next_attempt_at - interval '2 hours'
		WHERE state IN ('pending', 'sending')`)
	return errors.Join(leases, jobs, invitations)
}

// NextDay lets a day of the budgets of invitations pass, and makes invitations due that a home has
// refused for its budgets.
func (p *Proc) NextDay(ctx context.Context) error {
	_, budgets := p.age(ctx, `UPDATE invitation_budgets SET counted_at = counted_at - interval '1 day'`)
	_, invitations := p.age(ctx, `
		UPDATE sent_invitations SET next_attempt_at = next_attempt_at - interval '1 day'
		WHERE state IN ('pending', 'sending') AND last_error LIKE 'status 429 %'`)
	return errors.Join(budgets, invitations)
}
