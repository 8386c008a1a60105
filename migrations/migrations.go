// Package migrations holds the database schema as numbered pairs of SQL files, and applies them. A
// released pair never changes. A later pair changes the schema further.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed *.sql
var files embed.FS

// ErrDirty means that a migration failed before its end. A person must repair the database before
// mlsd changes it again.
var ErrDirty = errors.New("the database schema is dirty: a migration failed half way; repair it, then run mlsd migrate up")

// Up applies every migration that the database does not have yet. Several processes can call it at
// the same time: the driver takes an advisory lock.
func Up(ctx context.Context, databaseURL string) error {
	return with(ctx, databaseURL, func(m *migrate.Migrate) error { return m.Up() })
}

// Down reverts the newest n migrations.
func Down(ctx context.Context, databaseURL string, n int) error {
	if n <= 0 {
		return fmt.Errorf("migrate down: the number of steps must be positive, not %d", n)
	}
	return with(ctx, databaseURL, func(m *migrate.Migrate) error { return m.Steps(-n) })
}

// Version returns the number of the newest applied migration, 0 for an empty database.
func Version(ctx context.Context, databaseURL string) (version uint, err error) {
	err = with(ctx, databaseURL, func(m *migrate.Migrate) error {
		v, dirty, err := m.Version()
		if errors.Is(err, migrate.ErrNilVersion) {
			return nil
		}
		if err == nil && dirty {
			err = ErrDirty
		}
		version = v
		return err
	})
	return version, err
}

func with(ctx context.Context, databaseURL string, do func(*migrate.Migrate) error) (err error) {
	// pgxpool accepts the pool's settings in a URL. pgx would send them to the server.
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("parse the database URL: %w", err)
	}
	db := stdlib.OpenDB(*cfg.ConnConfig)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	source, err := iofs.New(files, ".")
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
	if err != nil {
		return errors.Join(fmt.Errorf("prepare migrations: %w", err), driver.Close())
	}
	defer func() {
		sourceErr, driverErr := m.Close()
		err = errors.Join(err, sourceErr, driverErr)
	}()
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	defer stop()

	err = do(m)
	var dirty migrate.ErrDirty
	switch {
	case errors.Is(err, migrate.ErrNoChange):
		return nil
	case errors.As(err, &dirty):
		return fmt.Errorf("%w (version %d)", ErrDirty, dirty.Version)
	case err != nil:
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
