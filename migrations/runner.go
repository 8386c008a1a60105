package migrations

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

// runner changes the schema of one database, on one connection.
type runner struct {
	files  fs.FS
	all    []migration // in files
	conn   *pgx.Conn
	log    *slog.Logger
	faults *failpoint.Set
	refuse func(context.Context, pgpool.Queryer) error // nil: nobody refuses a Down

	lockTimeout time.Duration // of one statement
	attempts    int           // of one migration
	firstPause  time.Duration // between attempts; doubled each time
}

// step is one file to run, and the version that the schema has then.
type step struct {
	label   string // "up 24"
	file    string // 000024_upgrades.up.sql
	scripts []script
	to      uint // 0: none
}

func (m migration) upStep() step {
	return step{label: fmt.Sprintf("up %d", m.version), file: m.name + ".up.sql", scripts: []script{m.up}, to: m.version}
}

func (m migration) downStep(before uint) step {
	s := step{label: fmt.Sprintf("down %d", m.version), file: m.name + ".down.sql", to: before}
	if m.beforeDown.sql != "" {
		s.scripts = append(s.scripts, m.beforeDown)
	}
	s.scripts = append(s.scripts, m.down)
	return s
}

func (r *runner) up(ctx context.Context) error {
	// A node that starts without a migration to apply needs no lock.
	s, err := r.state(ctx)
	if err != nil || s.Version >= newest(r.all) {
		return err
	}
	if err := r.lock(ctx); err != nil {
		return err
	}
	if s, err = r.state(ctx); err != nil { // again: another process has possibly changed it
		return err
	}
	for _, m := range r.all {
		if m.version <= s.Version {
			continue
		}
		if err := r.run(ctx, m.upStep()); err != nil {
			return err
		}
	}
	return nil
}

// state returns the state of the schema, if the runner can work on it or serve with it.
func (r *runner) state(ctx context.Context) (State, error) {
	s, err := Read(ctx, r.conn)
	if err != nil {
		return s, err
	}
	binary := newest(r.all)
	if s.Dirty || s.Version > binary {
		err = s.Serves(binary)
	}
	if err == nil && s.Version > binary {
		r.log.InfoContext(ctx, "the schema is newer than this mlsd, and it can serve with it",
			"database", s.Version, "binary", binary, "min_binary", s.MinBinary)
	}
	return s, err
}

func (r *runner) down(ctx context.Context, n int) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	steps, err := r.applied(ctx, n)
	if err != nil {
		return err
	}
	if r.refuse != nil {
		if err := r.refuse(ctx, r.conn); err != nil {
			return err
		}
	}
	for _, m := range steps {
		_, before, _ := find(r.all, m.version)
		if err := r.run(ctx, m.downStep(before)); err != nil {
			return err
		}
	}
	return nil
}

// applied returns the newest n applied migrations, the newest first.
func (r *runner) applied(ctx context.Context, n int) (steps []migration, err error) {
	s, err := r.state(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, known := find(r.all, s.Version); !known && s.Version > 0 {
		return nil, fmt.Errorf("this mlsd knows the schema up to version %d, and the database has version %d: take it back with the mlsd that made it",
			newest(r.all), s.Version)
	}
	for i := len(r.all) - 1; i >= 0 && len(steps) < n; i-- {
		if r.all[i].version <= s.Version {
			steps = append(steps, r.all[i])
		}
	}
	if len(steps) < n {
		return nil, fmt.Errorf("the database has %d migrations, which is fewer than %d", len(steps), n)
	}
	return steps, nil
}

func (r *runner) force(ctx context.Context, version uint) error {
	if _, _, known := find(r.all, version); !known && version != 0 {
		return fmt.Errorf("there is no version %d", version)
	}
	if err := r.lock(ctx); err != nil {
		return err
	}
	s, err := Read(ctx, r.conn)
	if err != nil {
		return err
	}
	if !s.Dirty {
		return fmt.Errorf("the schema has version %d and is not dirty: there is nothing to clear", s.Version)
	}
	return pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error { return setVersion(ctx, tx, version) })
}

// lock takes the migration lock, which the session keeps to its end. It is golang-migrate's, so that
// nodes of earlier versions respect it. lock asks again and again. A session that waits for a lock in
// a statement would have a snapshot, and CREATE INDEX CONCURRENTLY waits for all snapshots.
func (r *runner) lock(ctx context.Context) error {
	var database, schema string
	if err := r.conn.QueryRow(ctx, `SELECT current_database(), current_schema()`).Scan(&database, &schema); err != nil {
		return fmt.Errorf("take the migration lock: %w", err)
	}
	const salt = 1486364155 // golang-migrate's
	key := int64(crc32.ChecksumIEEE([]byte(schema+"\x00schema_migrations\x00"+database)) * salt)
	for logged := false; ; {
		var free bool
		err := r.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&free)
		if err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if free {
			return nil
		}
		if !logged {
			logged = true
			r.log.InfoContext(ctx, "another process changes the schema; this one waits")
		}
		if err := pause(ctx, busyPause); err != nil {
			return fmt.Errorf("wait for the process that changes the schema: %w", err)
		}
	}
}

// run takes a step. If a lock is not free within lockTimeout, the step is rolled back, so that what
// waits behind it goes on, and run tries again later.
func (r *runner) run(ctx context.Context, s step) error {
	wait := r.firstPause
	for attempt := 1; ; attempt++ {
		err := r.try(ctx, s)
		switch {
		case err == nil:
			r.log.InfoContext(ctx, "the schema was changed", "migration", s.file, "version", s.to)
			return nil
		case !pgpool.LockTimeout(err) && pgpool.Code(err) != deadlock:
			return fmt.Errorf("%s: %w", s.file, err)
		case attempt == r.attempts:
			return fmt.Errorf("%s: a lock was not free in %d attempts, and nothing was changed; try again when there is less traffic: %w", s.file, attempt, err)
		}
		r.log.WarnContext(ctx, "a migration waited for a lock, was rolled back, and is tried again",
			"migration", s.file, "attempt", attempt, "of", r.attempts, "waited", r.lockTimeout, "again_in", wait, "error", err)
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
		wait = min(2*wait, longestPause)
	}
}

const deadlock = "40P01"

// try runs a step once.
func (r *runner) try(ctx context.Context, s step) error {
	if _, err := r.conn.Exec(ctx, fmt.Sprintf(`SET lock_timeout = %d`, r.lockTimeout.Milliseconds())); err != nil {
		return err
	}
	inside := s.scripts
	if slices.ContainsFunc(s.scripts, func(s script) bool { return s.outside }) {
		if err := r.runOutside(ctx, s.scripts); err != nil {
			return err
		}
		inside = nil
	}
	tx, err := r.conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := r.change(ctx, tx, s, inside); err != nil {
		return errors.Join(err, rollback(ctx, tx))
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return r.faults.Hit(ctx, failpoint.AfterCommit, s.label)
}

// runOutside runs scripts outside of a transaction. The version changes after that, so an
// interruption makes all of them run again.
func (r *runner) runOutside(ctx context.Context, scripts []script) error {
	for _, script := range scripts {
		for _, statement := range script.statements() {
			if _, err := r.conn.Exec(ctx, statement); err != nil {
				return err
			}
		}
	}
	return nil
}

// change runs the scripts of a step and sets the version.
func (r *runner) change(ctx context.Context, tx pgx.Tx, s step, scripts []script) error {
	for _, script := range scripts {
		if _, err := tx.Exec(ctx, script.sql); err != nil {
			return err
		}
	}
	if err := setVersion(ctx, tx, s.to); err != nil {
		return err
	}
	return r.faults.Hit(ctx, failpoint.BeforeCommit, s.label)
}

// setVersion sets the version, as golang-migrate has it. Others can read the old one until the
// COMMIT.
func setVersion(ctx context.Context, tx pgx.Tx, version uint) error {
	_, err := tx.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS schema_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
		DELETE FROM schema_migrations`)
	if err == nil && version > 0 {
		_, err = tx.Exec(ctx, `INSERT INTO schema_migrations (version, dirty) VALUES ($1, false)`, version)
	}
	if err != nil {
		return fmt.Errorf("set the version: %w", err)
	}
	return nil
}

// rollback ends a transaction that has failed. A lost connection has ended it already.
func rollback(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !tx.Conn().IsClosed() {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// pause waits, or returns the error of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
