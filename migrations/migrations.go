package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// The version of the schema is the number of the newest applied migration. It is in
// golang-migrate's table schema_migrations. A file and its version are one transaction, under
// golang-migrate's advisory lock. So if a process or a connection ends at any moment, the database
// has the old version or the new one.

// SQL has the files of the migrations, named as golang-migrate wants them.
//
//go:embed *.sql
var SQL embed.FS

// ErrDirty means that another program ended in the middle of a migration: mlsd commits no dirty
// mark. A person must say which version the database has.
var ErrDirty = errors.New("the database schema is marked as dirty: another program ended in a migration; " +
	"look which version the tables have, and clear the mark with mlsd migrate force VERSION")

const (
	lockTimeout  = 3 * time.Second // of one statement; statements behind it wait as long
	attempts     = 8               // of one migration
	firstPause   = time.Second     // between attempts; doubled each time
	longestPause = 15 * time.Second
	closeTimeout = 5 * time.Second
)

// Option changes what Up, Down and Force do.
type Option func(*runner)

// Log sets where waits and applied migrations are logged. By default they are not logged.
func Log(log *slog.Logger) Option { return func(r *runner) { r.driver.log = log } }

// Unless makes Down call refuse before its first step, under the migration lock. Down returns an
// error of refuse.
func Unless(refuse func(ctx context.Context, db pgpool.Queryer) error) Option {
	return func(r *runner) { r.refuse = refuse }
}

// Up applies every migration that the database does not have yet. Several processes can call it at
// the same time. If the schema is newer than this binary, Up changes nothing, and returns a
// *VersionError if the binary cannot serve with it.
func Up(ctx context.Context, databaseURL string, options ...Option) error {
	return with(ctx, databaseURL, options, (*runner).up)
}

// Down reverts the newest n migrations. It deletes what these migrations have added: see Downs.
func Down(ctx context.Context, databaseURL string, n int, options ...Option) error {
	if n <= 0 {
		return fmt.Errorf("migrate down: the number of steps must be positive, not %d", n)
	}
	return with(ctx, databaseURL, options, func(r *runner, ctx context.Context) error { return r.down(ctx, n) })
}

// Script is one SQL file.
type Script struct {
	Name string // such as 000001_baseline.down.sql
	SQL  string
}

// Downs returns what Down with the same n would run, in the same order.
func Downs(ctx context.Context, databaseURL string, n int) (all []Script, err error) {
	err = with(ctx, databaseURL, nil, func(r *runner, ctx context.Context) error {
		versions, err := r.applied(ctx, n)
		for _, v := range versions {
			down, readErr := r.read(v, source.Down)
			all, err = append(all, down), errors.Join(err, readErr)
		}
		return err
	})
	return all, err
}

// Force clears a dirty mark and sets the version. It changes nothing else. It is an error if the
// schema is not dirty.
func Force(ctx context.Context, databaseURL string, version uint, options ...Option) error {
	return with(ctx, databaseURL, options, func(r *runner, ctx context.Context) error { return r.force(ctx, version) })
}

// Newest returns the number of the newest migration that this binary knows.
func Newest() uint {
	r := runner{files: SQL}
	if err := r.load(); err != nil {
		panic(err) // the files are part of the binary, and a test reads them
	}
	return r.newest()
}

// runner changes the schema of one database, on one connection.
type runner struct {
	files    fs.FS
	source   source.Driver // of files
	versions []uint        // in files, the oldest first
	driver   driver
	engine   *migrate.Migrate
	refuse   func(context.Context, pgpool.Queryer) error // nil if nothing refuses a Down

	attempts   int           // of one migration
	firstPause time.Duration // between attempts; doubled each time
}

// with calls do with a runner that is connected to the database.
func with(ctx context.Context, databaseURL string, options []Option,
	do func(*runner, context.Context) error) (err error) {
	r := &runner{
		files: SQL, attempts: attempts, firstPause: firstPause,
		driver: driver{ctx: ctx, log: slog.New(slog.DiscardHandler), lockTimeout: lockTimeout},
	}
	for _, o := range options {
		o(r)
	}
	if err := r.load(); err != nil {
		return err
	}
	if r.driver.conn, err = pgpool.ConnectToMigrate(ctx, databaseURL); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	if r.engine, err = migrate.NewWithInstance("files", r.source, "postgres", &r.driver); err != nil {
		return err
	}
	// After its timeout golang-migrate would leave a goroutine that still uses the connection. This
	// timeout does not pass, because the session already has the lock when golang-migrate takes it.
	r.engine.LockTimeout = time.Hour
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		// The server ends the session, and with it the migration lock, whatever Close returns.
		if closeErr := r.driver.conn.Close(ctx); err == nil {
			err = closeErr
		}
	}()
	return errs.Wrap(do(r, ctx), "migrate")
}

// load opens the files and lists their versions.
func (r *runner) load() (err error) {
	if r.source, err = iofs.New(r.files, "."); err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	v, err := r.source.First()
	for ; err == nil; v, err = r.source.Next(v) {
		r.versions = append(r.versions, v)
	}
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the migrations: %w", err)
	case len(r.versions) == 0:
		return errors.New("read the migrations: there are none")
	}
	return nil
}

func (r *runner) newest() uint { return r.versions[len(r.versions)-1] }

// read returns a file of a version.
func (r *runner) read(version uint, direction source.Direction) (s Script, err error) {
	open := r.source.ReadUp
	if direction == source.Down {
		open = r.source.ReadDown
	}
	file, name, err := open(version)
	if err != nil {
		return s, fmt.Errorf("read migration %d: %w", version, err)
	}
	sql, err := io.ReadAll(file)
	s = Script{Name: fmt.Sprintf("%06d_%s.%s.sql", version, name, direction), SQL: string(sql)}
	return s, errors.Join(err, file.Close())
}

// state returns the state of the schema, if the runner can work on it or serve with it.
func (r *runner) state(ctx context.Context) (State, error) {
	s, err := Read(ctx, r.driver.conn)
	if err != nil {
		return s, err
	}
	if s.Dirty || s.Version > r.newest() {
		err = s.Serves(r.newest())
	}
	if err == nil && s.Version > r.newest() {
		r.driver.log.InfoContext(ctx, "the schema is newer than this mlsd, and it can serve with it",
			"database", s.Version, "binary", r.newest(), "min_binary", s.MinBinary)
	}
	return s, err
}

func (r *runner) up(ctx context.Context) error {
	// A node that starts without a migration to apply needs no lock.
	s, err := r.state(ctx)
	if err != nil || s.Version >= r.newest() {
		return err
	}
	if err := r.driver.Lock(); err != nil { // until the session ends
		return err
	}
	if s, err = r.state(ctx); err != nil { // again: another process has possibly changed it
		return err
	}
	for _, v := range r.versions {
		if v <= s.Version {
			continue
		}
		if err := r.step(ctx, v, source.Up); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) down(ctx context.Context, n int) error {
	if err := r.driver.Lock(); err != nil { // until the session ends
		return err
	}
	versions, err := r.applied(ctx, n)
	if err != nil {
		return err
	}
	if r.refuse != nil {
		if err := r.refuse(ctx, r.driver.conn); err != nil {
			return err
		}
	}
	for _, v := range versions {
		if err := r.step(ctx, v, source.Down); err != nil {
			return err
		}
	}
	return nil
}

// applied returns the newest n applied versions, the newest first.
func (r *runner) applied(ctx context.Context, n int) (versions []uint, err error) {
	s, err := r.state(ctx)
	if err != nil {
		return nil, err
	}
	if s.Version > r.newest() {
		return nil, fmt.Errorf("this mlsd knows the schema up to version %d, and the database has version %d: "+
			"take it back with the mlsd that made it", r.newest(), s.Version)
	}
	for _, v := range slices.Backward(r.versions) {
		if v <= s.Version && len(versions) < n {
			versions = append(versions, v)
		}
	}
	if len(versions) < n {
		return nil, fmt.Errorf("the database has %d migrations, which is fewer than %d", len(versions), n)
	}
	return versions, nil
}

// step reverts the newest migration, or applies the next one. version is the version of that
// migration. If a lock is not free within lockTimeout, step rolls the migration back, so that
// statements behind it go on, and tries again later.
func (r *runner) step(ctx context.Context, version uint, direction source.Direction) error {
	script, err := r.read(version, direction)
	if err != nil {
		return err
	}
	n := 1
	if direction == source.Down {
		n = -1
	}
	wait := r.firstPause
	for attempt := 1; ; attempt++ {
		err := r.engine.Steps(n)
		switch {
		case err == nil:
			r.driver.log.InfoContext(ctx, "the schema was changed", "migration", script.Name)
			return nil
		case !pgpool.LockTimeout(err) && pgpool.Code(err) != deadlock:
			return fmt.Errorf("%s: %w", script.Name, err)
		case attempt == r.attempts:
			return fmt.Errorf("%s: a lock was not free in %d attempts, and nothing was changed; try again when there is less "+
				"traffic: %w",
				script.Name, attempt, err)
		}
		r.driver.log.WarnContext(ctx, "a migration waited for a lock, was rolled back, and is tried again", "migration",
			script.Name,
			"attempt", attempt, "of", r.attempts, "waited", r.driver.lockTimeout, "again_in", wait, "error", err)
		if worker.Pause(ctx, wait); ctx.Err() != nil {
			return fmt.Errorf("%s: %w", script.Name, context.Cause(ctx))
		}
		wait = min(2*wait, longestPause)
	}
}

const deadlock = "40P01"

func (r *runner) force(ctx context.Context, version uint) error {
	if version != 0 && !slices.Contains(r.versions, version) {
		return fmt.Errorf("there is no version %d", version)
	}
	if err := r.driver.Lock(); err != nil {
		return err
	}
	s, err := Read(ctx, r.driver.conn)
	if err != nil {
		return err
	}
	if !s.Dirty {
		return fmt.Errorf("the schema has version %d and is not dirty: there is nothing to clear", s.Version)
	}
	return r.driver.SetVersion(int(version), false)
}
