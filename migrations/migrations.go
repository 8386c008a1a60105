// Package migrations holds the database schema as numbered pairs of SQL files, and applies them. A
// released pair never changes. A later pair changes the schema further.
//
// The version of the schema is the number of the newest applied migration. It is in the table
// schema_migrations, in the form of golang-migrate, which applied the migrations before number 24.
// Each file and its version are one transaction, under an advisory lock. So a process or a
// connection that ends at any moment leaves the old version or the new one.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

//go:embed *.sql
var files embed.FS

// ErrDirty means that an mlsd of before migration 24 ended in the middle of a migration. That mlsd
// kept the version apart from the migration, so a person must say which version the database has.
var ErrDirty = errors.New(
	"the database schema is marked as dirty: an earlier mlsd ended in a migration; mlsd migrate status says what to check, and mlsd migrate force clears the mark")

// Option changes what Up, Down and Force do.
type Option func(*runner)

// Log sets where waits and applied migrations are logged. The default is nowhere.
func Log(log *slog.Logger) Option { return func(r *runner) { r.log = log } }

// Faults sets the failpoints. Their points are failpoint.BeforeCommit and failpoint.AfterCommit, and
// their methods "up 24" and "down 24".
func Faults(faults *failpoint.Set) Option { return func(r *runner) { r.faults = faults } }

// Unless makes Down ask before its first step, under the migration lock. An error of refuse is
// Down's.
func Unless(refuse func(ctx context.Context, db pgpool.Queryer) error) Option {
	return func(r *runner) { r.refuse = refuse }
}

// Up applies every migration that the database does not have yet. Several processes can call it at
// the same time. If the schema is newer than this binary, Up changes nothing, and returns a
// *VersionError if the binary cannot serve with it.
func Up(ctx context.Context, databaseURL string, options ...Option) error {
	return with(ctx, databaseURL, options, func(r *runner) error { return r.up(ctx) })
}

// Down reverts the newest n migrations. It deletes what they have added: see Losses.
func Down(ctx context.Context, databaseURL string, n int, options ...Option) error {
	if n <= 0 {
		return fmt.Errorf("migrate down: the number of steps must be positive, not %d", n)
	}
	return with(ctx, databaseURL, options, func(r *runner) error { return r.down(ctx, n) })
}

// Version returns the number of the newest applied migration, 0 for an empty database.
func Version(ctx context.Context, databaseURL string) (version uint, err error) {
	err = with(ctx, databaseURL, nil, func(r *runner) error {
		s, err := Read(ctx, r.conn)
		if err == nil && s.Dirty {
			err = fmt.Errorf("%w (version %d)", ErrDirty, s.Version)
		}
		version = s.Version
		return err
	})
	return version, err
}

// Force clears a dirty mark and sets the version. It changes nothing else. It is an error if the
// schema is not dirty.
func Force(ctx context.Context, databaseURL string, version uint, options ...Option) error {
	return with(ctx, databaseURL, options, func(r *runner) error { return r.force(ctx, version) })
}

// Newest returns the number of the newest migration that this binary knows.
func Newest() uint {
	all, err := load(files)
	if err != nil {
		panic(err) // the files are part of the binary, and a test reads them
	}
	return newest(all)
}

// with calls do with a runner that is connected to the database.
func with(ctx context.Context, databaseURL string, options []Option, do func(*runner) error) (err error) {
	r := &runner{
		files: files, log: slog.New(slog.DiscardHandler),
		lockTimeout: lockTimeout, attempts: attempts, firstPause: firstPause,
	}
	for _, o := range options {
		o(r)
	}
	if r.all, err = load(r.files); err != nil {
		return err
	}
	if r.conn, err = pgpool.ConnectToMigrate(ctx, databaseURL); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		// The server ends the session, and with it the migration lock, whatever becomes of this.
		if closeErr := r.conn.Close(ctx); err == nil {
			err = closeErr
		}
	}()
	if err := do(r); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

const (
	lockTimeout  = 3 * time.Second // of one statement; what comes behind it waits as long
	attempts     = 8               // of one migration
	firstPause   = time.Second     // between attempts; doubled each time
	longestPause = 15 * time.Second
	busyPause    = 100 * time.Millisecond // between looks whether the migration lock is free
	closeTimeout = 5 * time.Second
)
