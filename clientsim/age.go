package clientsim

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file lets time pass in the server's private database, which no client
// can: what a scenario would have to wait a minute or a week for gets older.

// inDatabase runs f in a transaction there, in which no trigger fires: nothing
// that the server does is happening.
func (p *Proc) inDatabase(ctx context.Context, f func(pgx.Tx) error) error {
	address, err := p.database()
	if err != nil {
		return fmt.Errorf("server: database: %w", err)
	}
	db, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("server: database: %w", err)
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		return f(tx)
	})
	if err = errors.Join(err, db.Close(context.WithoutCancel(ctx))); err != nil {
		return fmt.Errorf("server: database: %w", err)
	}
	return nil
}

// age runs a statement that moves times into the past, and nothing else.
func (p *Proc) age(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = p.inDatabase(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

// Pushed waits until every push of an account's is written down as ended: a
// call that was heard may be made again by a server that dies before that.
func (p *Proc) Pushed(ctx context.Context, who *Account) error {
	return until(ctx, pushPatience, func() (ended bool, err error) {
		err = p.inDatabase(ctx, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `
				SELECT NOT EXISTS (SELECT FROM push_jobs WHERE did = $1 AND state IN ('pending', 'sending'))`, who.DID.String()).Scan(&ended)
		})
		return ended, err
	})
}

// EndLeases lets the leases of dead workers end, and has their jobs be due.
func (p *Proc) EndLeases(ctx context.Context) error {
	_, leases := p.age(ctx, `
		UPDATE idempotency_keys SET lease_expires_at = lease_expires_at - interval '1 hour' WHERE state = 'processing'`)
	_, jobs := p.age(ctx, `
		UPDATE push_jobs SET next_attempt_at = next_attempt_at - interval '2 hours' WHERE state IN ('pending', 'sending')`)
	return errors.Join(leases, jobs)
}

// expire ends the lifetime of a call's record a minute ago, and has the model
// and the ledger know that the key is new.
func (w *World) expire(ctx context.Context, who *Account, call Call) error {
	rows, err := w.Server.age(ctx, `
		UPDATE idempotency_keys
		SET created_at = created_at - (expires_at - now()) - interval '1 minute', expires_at = now() - interval '1 minute'
		WHERE caller_did = $1 AND nsid = $2 AND key = $3`, who.DID.String(), call.Method.String(), call.Key)
	if err != nil {
		return err
	}
	if rows != 1 {
		return fmt.Errorf("%s has %d records under its key", call.Method, rows)
	}
	w.ledger.Expired(who, call)
	w.model.Expired(call)
	return nil
}
