package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/migrations"
)

const (
	// databaseURLEnv names a server to use instead of a private one.
	databaseURLEnv = "MLSD_TEST_DATABASE_URL"

	// namePrefix begins every database made here: mlsd_test_<token>_<number or "template">.
	namePrefix = "mlsd_test_"

	// lockSpace is the first key of the advisory locks by which a process shows that it still needs its databases.
	lockSpace = 0x6d6c7364

	adminConns = 4 // databases made or dropped at once
)

// server makes and drops databases. Safe for use by parallel tests.
type server struct {
	base  *url.URL // a database to connect to that is not a test's
	admin *pgxpool.Pool
	token uint32 // part of our databases' names; its advisory lock is held for life by keep
	keep  *pgxpool.Conn
	count atomic.Int64
	owned *privateServer // nil for a server that was there before; kept so that its lock is not collected
}

// newServer starts a server, or connects to the one in the environment, and makes the template.
func newServer(ctx context.Context) (*server, error) {
	s := &server{}
	databaseURL := os.Getenv(databaseURLEnv)
	if databaseURL == "" {
		var err error
		if s.owned, err = startPrivate(ctx); err != nil {
			return nil, err
		}
		databaseURL = s.owned.pg.ConnString("postgres")
	}
	if err := s.open(ctx, databaseURL); err != nil {
		return nil, err
	}
	if err := s.makeTemplate(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// open connects, claims a token and drops what processes that are gone have left.
func (s *server) open(ctx context.Context, databaseURL string) error {
	var err error
	if s.base, err = url.Parse(databaseURL); err != nil || s.base.Scheme == "" {
		return errors.Join(errors.New(databaseURLEnv+" must be a URL: postgres://…"), err)
	}
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	cfg.MaxConns = adminConns + 1 // one is kept
	// The pool outlives ctx, which is about the start.
	if s.admin, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if s.keep, err = s.admin.Acquire(ctx); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	s.token = binary.BigEndian.Uint32(b[:])
	if ok, err := s.tryLock(ctx, s.token); err != nil || !ok {
		return errors.Join(fmt.Errorf("claim token %08x: %v", s.token, ok), err)
	}
	return s.reap(ctx)
}

func (s *server) tryLock(ctx context.Context, token uint32) (ok bool, err error) {
	err = s.keep.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, int32(lockSpace), int32(token)).Scan(&ok)
	return ok, err
}

// reap drops databases whose process is gone: their token's lock is free.
func (s *server) reap(ctx context.Context) error {
	rows, err := s.keep.Query(ctx, `SELECT datname FROM pg_database WHERE starts_with(datname, $1)`, namePrefix)
	if err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	for _, name := range names {
		hex, _, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "_")
		token, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			continue // not named by us
		}
		free, err := s.tryLock(ctx, uint32(token))
		if err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		if !free || uint32(token) == s.token {
			continue // in use (our own lock we can take again)
		}
		err = s.drop(ctx, name)
		if _, unlockErr := s.keep.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, int32(lockSpace), int32(token)); err != nil || unlockErr != nil {
			return fmt.Errorf("reap: %w", errors.Join(err, unlockErr))
		}
	}
	return nil
}

func (s *server) makeTemplate(ctx context.Context) error {
	name := s.name("template")
	if err := s.createFrom(ctx, name, "template0"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.url(name)); err != nil {
		return fmt.Errorf("migrate the template: %w", err)
	}
	return nil
}

// create makes a database and returns its name.
func (s *server) create(ctx context.Context, migrated bool) (string, error) {
	name := s.name(strconv.FormatInt(s.count.Add(1), 10))
	template := "template0"
	if migrated {
		template = s.name("template")
	}
	return name, s.createFrom(ctx, name, template)
}

func (s *server) createFrom(ctx context.Context, name, template string) error {
	q := fmt.Sprintf(`CREATE DATABASE %s TEMPLATE %s ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`, quote(name), quote(template))
	if _, err := s.admin.Exec(ctx, q); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

// drop removes a database and ends the sessions that still use it.
func (s *server) drop(ctx context.Context, name string) error {
	if _, err := s.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(name)+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	return nil
}

func (s *server) name(suffix string) string {
	return fmt.Sprintf("%s%08x_%s", namePrefix, s.token, suffix)
}

// url is the connection string of one database.
func (s *server) url(name string) string {
	u := *s.base
	u.Path = "/" + name
	return u.String()
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
