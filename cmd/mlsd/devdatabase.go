package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/migrations"
)

// devDatabases is a private PostgreSQL in a temporary directory, whose databases are copies of an
// empty one. It does not flush to disk.
type devDatabases struct {
	dir   string
	pg    *localpg.Server
	admin *pgxpool.Pool // of a database that nobody else uses
	last  int           // number of the newest copy
}

// devPrefix begins the names of the temporary directories.
const devPrefix = "mlsd-dev-"

// startDevDatabases starts PostgreSQL and makes the empty database.
func startDevDatabases(ctx context.Context, log *slog.Logger) (_ *devDatabases, err error) {
	if err := removeLeftovers(); err != nil {
		return nil, err
	}
	downloads, err := localpg.DefaultDataDir()
	if err != nil {
		return nil, err
	}
	d := &devDatabases{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close(ctx))
		}
	}()
	if d.dir, err = os.MkdirTemp("", devPrefix); err != nil {
		return nil, err
	}
	if err := os.Chmod(d.dir, 0o711); err != nil { // PostgreSQL may run as another account
		return nil, err
	}
	d.pg, err = localpg.Start(ctx, localpg.Config{
		DataDir: d.dir, DownloadDir: filepath.Join(downloads, "pgbin"), Logger: log,
		Settings: map[string]string{
			"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "wal_level": "minimal", "max_wal_senders": "0",
			"max_connections":            "500", // several nodes at a time: see instances
			"checkpoint_timeout":         "1h",
			"dynamic_shared_memory_type": "mmap", // /dev/shm has 64 MB in many containers
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start the private PostgreSQL: %w", err)
	}
	if err := d.pg.EnsureDatabase(ctx, localpg.Database); err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, d.url(localpg.Database), migrations.Log(log)); err != nil {
		return nil, err
	}
	d.admin, err = pgxpool.New(ctx, d.url("postgres"))
	return d, err
}

// removeLeftovers removes the directories of processes that were killed.
func removeLeftovers() error {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), devPrefix+"*", "postgres.lock"))
	if err != nil {
		return err
	}
	for _, path := range locks {
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another account's
		}
		// PostgreSQL ends with its process. Whoever has the lock still runs.
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(filepath.Dir(path))
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("remove what a killed mlsd dev has left: %w", err)
		}
	}
	return nil
}

func (d *devDatabases) url(name string) string { return d.pg.ConnString(name) }

// create makes an empty database and returns its name. Each has another generation of the event
// stream, so that cursors of an older one are out of date. It must not run twice at the same time.
func (d *devDatabases) create(ctx context.Context) (name string, err error) {
	if err := d.beginGeneration(ctx); err != nil {
		return "", err
	}
	d.last++
	name = fmt.Sprintf("%s%d", localpg.Database, d.last)
	_, err = d.admin.Exec(ctx, "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(localpg.Database))
	if err != nil {
		return "", fmt.Errorf("make an empty database: %w", err)
	}
	return name, nil
}

// beginGeneration begins a generation in the database that is copied.
func (d *devDatabases) beginGeneration(ctx context.Context) (err error) {
	cfg, err := pgx.ParseConfig(d.url(localpg.Database))
	if err != nil {
		return err
	}
	conn, err := pgpool.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	_, _, err = events.Restored(ctx, conn)
	return err
}

// drop removes a database.
func (d *devDatabases) drop(ctx context.Context, name string) error {
	if _, err := d.admin.Exec(ctx, "DROP DATABASE "+quote(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// close stops PostgreSQL and removes its directory.
func (d *devDatabases) close(ctx context.Context) (err error) {
	if d.admin != nil {
		d.admin.Close()
	}
	if d.pg != nil {
		err = stopDatabase(ctx, d.pg)
	}
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}
