package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
	"mlsd/events"
	"mlsd/internal/errs"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/migrations"
)

// databases is a private PostgreSQL in a temporary directory. Its databases are copies of an empty
// database. It does not flush to disk. create and empty are safe for concurrent use.
type databases struct {
	mu         sync.Mutex // guards the fields below, once startDatabases has returned
	dir        string
	pg         *localpg.Server
	admin      *pgx.Conn            // to a database that nobody else uses
	conns      map[string]*pgx.Conn // to the copies; a new session would have to read the whole catalogue
	last       int                  // number of the newest copy
	generation int64                // newest generation of an event stream
}

var (
	//go:embed original.sql
	originalSQL string
	//go:embed empty.sql
	emptySQL string
)

// stopTimeout is how long PostgreSQL may take to stop.
const stopTimeout = 30 * time.Second

// devPrefix begins the names of the temporary directories.
const devPrefix = "mlsd-dev-"

// original is the name of the database that is copied. It differs from [localpg.Database], which
// mlsd inspect reads in a data directory, because nobody should look for a request in the original.
const original = "original"

// connections bounds the connections of one service, which can have several nodes at one time: see
// instances.
const connections = 500

// startDatabases starts PostgreSQL for that many services, and creates the empty database. If
// PostgreSQL must be downloaded, it is kept in dataDir.
func startDatabases(
	ctx context.Context, dataDir string, services int, log *slog.Logger, step localpg.Step,
) (*databases, error) {
	d := &databases{conns: map[string]*pgx.Conn{}}
	if err := Attempt(func() {
		Check(removeLeftovers(os.TempDir()))
		d.dir = Must(os.MkdirTemp("", devPrefix))
		Check(os.Chmod(d.dir, 0o711)) // PostgreSQL may run as another account
		var err error
		d.pg, err = localpg.Start(ctx, localpg.Config{
			DataDir: d.dir, DownloadDir: filepath.Join(dataDir, "pgbin"), Logger: log, Step: step,
			Settings: map[string]string{
				"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "wal_level": "minimal",
				"max_wal_senders":            "0",
				"max_connections":            strconv.Itoa(connections * services),
				"checkpoint_timeout":         "1h",
				"dynamic_shared_memory_type": "mmap", // /dev/shm has 64 MB in many containers
			},
		})
		Check(errs.Wrap(err, "start the private PostgreSQL"))
		Check(d.pg.EnsureDatabase(ctx))
		step("making the schema", "")
		Check(migrations.Up(ctx, d.url(localpg.Database)))
		Check(d.keepOriginal(ctx))
		d.admin = Must(d.connect(ctx, "postgres"))
		Must(d.admin.Exec(ctx, "ALTER DATABASE "+localpg.Database+" RENAME TO "+original))
	}); err != nil {
		return nil, errors.Join(err, d.close(ctx))
	}
	return d, nil
}

// keepOriginal prepares the database that is copied.
func (d *databases) keepOriginal(ctx context.Context) (err error) {
	conn, err := d.connect(ctx, localpg.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	_, err = conn.Exec(ctx, originalSQL)
	return errs.Wrap(err, "keep the rows of an empty database")
}

// removeLeftovers removes the directories of killed processes. base is the directory for temporary
// files.
func removeLeftovers(base string) (err error) {
	defer Catch(&err)
	locks := Must(filepath.Glob(filepath.Join(base, devPrefix+"*", "postgres.lock")))
	for _, path := range locks {
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // it belongs to another account
		}
		// PostgreSQL ends with its process. If somebody holds the lock, the process is running.
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(filepath.Dir(path))
		}
		Check(errs.Wrap(errors.Join(err, lock.Close()), "remove what a killed mlsd-dev has left"))
	}
	return nil
}

func (d *databases) url(name string) string { return d.pg.ConnString(name) }

// create creates an empty database.
func (d *databases) create(ctx context.Context) (name string, err error) {
	defer Catch(&err)
	name = Must(d.copy(ctx))
	return name, d.empty(ctx, name)
}

func (d *databases) copy(ctx context.Context) (name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	name = fmt.Sprintf("%s%d", localpg.Database, d.last)
	_, err = d.admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+original)
	return name, errs.Wrap(err, "make an empty database")
}

// empty empties a database that nobody uses any more. Its event stream gets a generation that no
// database had before, so that older cursors are outdated.
func (d *databases) empty(ctx context.Context, name string) (err error) {
	defer Catch(&err)
	d.mu.Lock()
	defer d.mu.Unlock()
	conn := d.conns[name]
	if conn == nil {
		conn = Must(d.connect(ctx, name))
		d.conns[name] = conn
	}
	_, err = conn.Exec(ctx, emptySQL)
	Check(errs.Wrap(err, "empty a database"))
	for before := d.generation; d.generation <= before; {
		d.generation, _ = Must2(events.Restored(ctx, conn))
	}
	return nil
}

func (d *databases) connect(ctx context.Context, name string) (_ *pgx.Conn, err error) {
	defer Catch(&err)
	cfg := Must(pgx.ParseConfig(d.url(name)))
	return pgpool.Connect(ctx, cfg)
}

// close stops PostgreSQL and removes its directory.
func (d *databases) close(ctx context.Context) (err error) {
	for _, conn := range d.conns {
		err = errors.Join(err, conn.Close(ctx))
	}
	if d.admin != nil {
		err = errors.Join(err, d.admin.Close(ctx))
	}
	if d.pg != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, d.pg.Stop(ctx))
	}
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}
