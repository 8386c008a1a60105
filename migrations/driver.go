package migrations

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/worker"
)

// driver is what golang-migrate runs migrations through. For each migration it calls SetVersion
// with a dirty mark, Run, and SetVersion without the mark. The first call begins a transaction, and
// the last call commits it. So a file and its version are one transaction, and no dirty mark is
// ever committed.
type driver struct {
	// ctx ends the work: the methods of golang-migrate have no context.
	ctx         context.Context
	conn        *pgx.Conn
	log         *slog.Logger
	faults      *failpoint.Set
	lockTimeout time.Duration // of one statement

	tx      pgx.Tx // of the migration that runs; nil if none runs
	version int    // that the schema has without that migration
}

var _ database.Driver = (*driver)(nil)

const (
	busyPause       = 100 * time.Millisecond // between looks whether the migration lock is free
	rollbackTimeout = 5 * time.Second
)

// Lock takes the migration lock, which is golang-migrate's own. The session can take it several
// times. Lock asks again and again: a session that waits for a lock in a statement has a snapshot,
// and CREATE INDEX CONCURRENTLY waits for all snapshots.
func (d *driver) Lock() error {
	key, err := d.lockKey()
	if err != nil {
		return err
	}
	for logged := false; ; {
		var free bool
		if err := d.conn.QueryRow(d.ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&free); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if free {
			return nil
		}
		if !logged {
			logged = true
			d.log.InfoContext(d.ctx, "another process changes the schema; this one waits")
		}
		if worker.Pause(d.ctx, busyPause); d.ctx.Err() != nil {
			return fmt.Errorf("wait for the process that changes the schema: %w", context.Cause(d.ctx))
		}
	}
}

// Unlock gives the lock back as often as Lock has taken it. A session that has ended has no lock.
func (d *driver) Unlock() error {
	if d.conn.IsClosed() {
		return nil
	}
	key, err := d.lockKey()
	if err != nil {
		return err
	}
	_, err = d.conn.Exec(d.ctx, `SELECT pg_advisory_unlock($1)`, key)
	return errs.Wrap(err, "give the migration lock back")
}

// lockKey returns golang-migrate's own key, so that the command of golang-migrate respects the
// lock.
func (d *driver) lockKey() (int64, error) {
	var name, schema string
	if err := d.conn.QueryRow(d.ctx, `SELECT current_database(), current_schema()`).Scan(&name, &schema); err != nil {
		return 0, fmt.Errorf("find the migration lock: %w", err)
	}
	const salt = 1486364155
	return int64(crc32.ChecksumIEEE([]byte(schema+"\x00schema_migrations\x00"+name)) * salt), nil
}

// SetVersion begins the transaction of a migration if dirty is true. Otherwise it commits that
// transaction with its version. If there is no transaction, it sets the version in one of its own.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty {
		return d.begin()
	}
	if d.tx == nil {
		if err := d.begin(); err != nil {
			return err
		}
	}
	tx := d.tx
	d.tx = nil
	step := fmt.Sprintf("up %d", version)
	if version < d.version {
		step = fmt.Sprintf("down %d", d.version)
	}
	err := setVersion(d.ctx, tx, version)
	if err == nil {
		err = d.faults.Hit(d.ctx, failpoint.BeforeCommit, step)
	}
	if err != nil {
		return errors.Join(err, d.rollback(tx))
	}
	if err := tx.Commit(d.ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return d.faults.Hit(d.ctx, failpoint.AfterCommit, step)
}

// begin begins the transaction of a migration.
func (d *driver) begin() (err error) {
	if d.version, _, err = d.Version(); err != nil {
		return err
	}
	if d.tx, err = d.conn.Begin(d.ctx); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	_, err = d.tx.Exec(d.ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, d.lockTimeout.Milliseconds()))
	return err
}

// Run runs a file in the transaction that SetVersion has begun.
func (d *driver) Run(migration io.Reader) error {
	sql, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	if _, err := d.tx.Exec(d.ctx, string(sql)); err != nil {
		tx := d.tx
		d.tx = nil
		return errors.Join(err, d.rollback(tx))
	}
	return nil
}

// rollback ends a transaction that has failed. A lost connection has ended it already.
func (d *driver) rollback(tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), rollbackTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !d.conn.IsClosed() {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// setVersion sets the version, in the form of golang-migrate. Others read the old version until the
// COMMIT.
func setVersion(ctx context.Context, tx pgx.Tx, version int) error {
	_, err := tx.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS schema_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
		DELETE FROM schema_migrations`)
	if err == nil && version > 0 {
		_, err = tx.Exec(ctx, `INSERT INTO schema_migrations (version, dirty) VALUES ($1, false)`, version)
	}
	return errs.Wrap(err, "set the version")
}

// Version returns the version of the schema, or database.NilVersion if there is none.
func (d *driver) Version() (version int, dirty bool, err error) {
	s, err := Read(d.ctx, d.conn)
	if err == nil && s.Version == 0 {
		return database.NilVersion, s.Dirty, nil
	}
	return int(s.Version), s.Dirty, err
}

// Close does nothing, because the connection belongs to the code that has made it.
func (d *driver) Close() error { return nil }

// Open is for drivers that golang-migrate finds by the scheme of a URL.
func (d *driver) Open(string) (database.Driver, error) { return nil, errors.ErrUnsupported }

// Drop refuses to delete people's data.
func (d *driver) Drop() error { return errors.ErrUnsupported }
