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

	"mlsd/internal/localpg"
	"mlsd/migrations"
)

const (
	// databaseURLEnv names a server to use instead of a private one.
	databaseURLEnv = "MLSD_TEST_DATABASE_URL"

	// namePrefix is the start of every test database's name: mlsd_test_<token>_<number or
	// "template">.
	namePrefix = "mlsd_test_"

	// lockSpace is the first key of the advisory locks on tokens. A process that holds its token's
	// lock still uses its databases.
	lockSpace = 0x6d6c7364

	adminConns = 4 // databases made or dropped at once
)

// server makes and drops databases. It is safe for concurrent use.
type server struct {
	base     *url.URL // of a database that belongs to no test
	admin    *pgxpool.Pool
	token    uint32        // part of the names of this process's databases
	tokens   *pgxpool.Conn // holds the advisory lock on token until this process ends
	template string        // the name of the migrated database
	count    atomic.Int64
	// owned is nil if another process started the server. The field keeps its lock from garbage
	// collection.
	owned *privateServer
}

// newServer starts a server, or connects to the one in the environment and makes the template there.
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
	if s.owned != nil {
		s.template = localpg.Database
		return s, nil
	}
	return s, s.makeTemplate(ctx)
}

// open connects, claims a token, and drops the databases of processes that have ended.
func (s *server) open(ctx context.Context, databaseURL string) error {
	var err error
	if s.base, err = url.Parse(databaseURL); err != nil || s.base.Scheme == "" {
		return errors.Join(errors.New(databaseURLEnv+" must be a URL: postgres://…"), err)
	}
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	cfg.MaxConns = adminConns + 1 // one holds the lock on the token
	// ctx is for the start only. The pool stays open after it.
	if s.admin, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if s.tokens, err = s.admin.Acquire(ctx); err != nil {
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
	return s.dropAbandoned(ctx)
}

func (s *server) tryLock(ctx context.Context, token uint32) (ok bool, err error) {
	err = s.tokens.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, int32(lockSpace), int32(token)).Scan(&ok)
	return ok, err
}

// dropAbandoned drops the databases of processes that have ended: the lock on their token is free.
func (s *server) dropAbandoned(ctx context.Context) error {
	rows, err := s.tokens.Query(ctx, `SELECT datname FROM pg_database WHERE starts_with(datname, $1)`, namePrefix)
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
			continue // not a database of this package
		}
		free, err := s.tryLock(ctx, uint32(token))
		if err != nil {
			return fmt.Errorf("drop abandoned databases: %w", err)
		}
		if !free || uint32(token) == s.token {
			continue // in use; tryLock also succeeds for this process's own token
		}
		err = s.drop(ctx, name)
		if _, unlockErr := s.tokens.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, int32(lockSpace),
			int32(token)); err != nil || unlockErr != nil {
			return fmt.Errorf("drop abandoned databases: %w", errors.Join(err, unlockErr))
		}
	}
	return nil
}

func (s *server) makeTemplate(ctx context.Context) error {
	s.template = s.name("template")
	if err := s.createFrom(ctx, s.template, "template0"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.url(s.template)); err != nil {
		return fmt.Errorf("migrate the template: %w", err)
	}
	return nil
}

// create makes a database and returns its name.
func (s *server) create(ctx context.Context, migrated bool) (string, error) {
	name := s.name(strconv.FormatInt(s.count.Add(1), 10))
	template := "template0"
	if migrated {
		template = s.template
	}
	return name, s.createFrom(ctx, name, template)
}

func (s *server) createFrom(ctx context.Context, name, template string) error {
	q := fmt.Sprintf(`CREATE DATABASE %s TEMPLATE %s ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`, quote(name),
		quote(template))
	if s.owned != nil {
		q += ` STRATEGY file_copy` // needs a checkpoint, which takes no time without a disk, and writes no WAL
	}
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

// url returns the connection string of one database.
func (s *server) url(name string) string {
	u := *s.base
	u.Path = "/" + name
	return u.String()
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
