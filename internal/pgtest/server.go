package pgtest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/localpg"
	"mlsd/internal/testdir"
)

// adminConns is how many databases are made or dropped at the same time.
const adminConns = 4

// server is the PostgreSQL of this process, which makes and drops databases. It is safe for
// concurrent use.
type server struct {
	pg    *localpg.Server
	dir   *testdir.Dir // this process owns it as long as this value is reachable
	admin *pgxpool.Pool
	count atomic.Int64
}

// newServer starts a server in a temporary directory. The server does not flush to disk.
func newServer(ctx context.Context) (*server, error) {
	dir, err := testdir.Claim()
	if err != nil {
		return nil, err
	}
	if err := copyTemplate(ctx, serverTemplate, dir.Path); err != nil {
		return nil, err
	}
	downloads, err := testdir.Downloads()
	if err != nil {
		return nil, err
	}
	pg, err := localpg.Start(ctx, localpg.Config{
		DataDir:     dir.Path,
		DownloadDir: downloads,
		Settings: map[string]string{
			"fsync":                      "off",
			"full_page_writes":           "off",
			"synchronous_commit":         "off",
			"max_connections":            "400",
			"shared_buffers":             "32MB",
			"checkpoint_timeout":         "1h",
			"max_wal_size":               "128MB", // the data directory may be in memory
			"autovacuum_naptime":         "10min", // a database exists only for seconds
			"dynamic_shared_memory_type": "mmap",  // /dev/shm has 64 MB in many containers
		},
	})
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(pg.ConnString("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	cfg.MaxConns = adminConns
	// ctx is only for the start. The pool stays open after ctx has ended.
	admin, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &server{pg: pg, dir: dir, admin: admin}, nil
}

// create makes a database and returns its name.
func (s *server) create(ctx context.Context, migrated bool) (string, error) {
	name, template := fmt.Sprintf("mlsd_test_%d", s.count.Add(1)), "template0"
	if migrated {
		template = localpg.Database
	}
	// Copying the files writes no WAL. It needs a checkpoint, which takes no time without a disk.
	_, err := s.admin.Exec(ctx, `CREATE DATABASE `+quote(name)+` TEMPLATE `+quote(template)+
		` ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' STRATEGY file_copy`)
	return name, errs.Wrap(err, "create database")
}

// drop removes a database and ends the sessions that still use it.
func (s *server) drop(ctx context.Context, name string) error {
	_, err := s.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(name)+` WITH (FORCE)`)
	return errs.Wrap(err, "drop database")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
