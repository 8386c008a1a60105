package attack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// environment is a PostgreSQL and a directory of accounts. Each attack gets a database and a server
// of its own.
type environment struct {
	home     string
	dir      *testbed.Directory
	postgres *testbed.Postmaster
	served   int // servers so far
}

// newEnvironment starts both. binary makes the PostgreSQL. After an error it returns what there is,
// for close.
func newEnvironment(ctx context.Context, binary string) (*environment, error) {
	e := &environment{}
	var err error
	if e.dir, err = testbed.NewDirectory("127.0.0.1:0"); err != nil {
		return e, err
	}
	if e.home, err = os.MkdirTemp("", "mlsd-attack-"); err != nil {
		return e, err
	}
	// A server started by root runs its database as another user, who needs access to the data
	// directory.
	if err := os.Chmod(e.home, 0o755); err != nil {
		return e, err
	}
	owner := testbed.NewProc(binary, filepath.Join(e.home, "data"), e.dir.URL(), xrpc.DefaultServiceDID)
	if err := owner.Start(ctx, nil); err != nil {
		return e, err
	}
	postgres, err := owner.Detach(ctx)
	if err != nil {
		return e, errors.Join(err, owner.Stop())
	}
	e.postgres = postgres
	return e, postgres.Start(ctx)
}

func (e *environment) close(ctx context.Context) error {
	var errs []error
	if e.postgres != nil {
		errs = append(errs, e.postgres.Stop())
	}
	if e.dir != nil {
		errs = append(errs, e.dir.Close(context.WithoutCancel(ctx)))
	}
	if e.home != "" {
		errs = append(errs, os.RemoveAll(e.home))
	}
	return errors.Join(errs...)
}

// server is a mlsd with a new database.
type server struct {
	*testbed.Proc
	database string // its URL
	drop     func(context.Context) error
}

// start starts binary with its default limits and a new database.
func (e *environment) start(ctx context.Context, binary string) (*server, error) {
	e.served++
	name := fmt.Sprintf("attack%d", e.served)
	if err := execute(ctx, e.postgres.URL(), "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	address, err := url.Parse(e.postgres.URL())
	if err != nil {
		return nil, err
	}
	address.Path = "/" + name
	s := &server{
		Proc:     testbed.NewProc(binary, filepath.Join(e.home, name), e.dir.URL(), xrpc.DefaultServiceDID),
		database: address.String(),
		drop: func(ctx context.Context) error {
			return execute(ctx, e.postgres.URL(), "DROP DATABASE "+name+" WITH (FORCE)")
		},
	}
	s.UseDefaults()
	return s, s.Start(ctx, map[string]string{"MLSD_DATABASE_URL": s.database})
}

// stop kills the server and drops its database. An attacked server may still be busy.
func (s *server) stop(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	return errors.Join(s.Kill(), s.drop(ctx))
}

// stored returns the size of the database in bytes.
func (s *server) stored(ctx context.Context) (n int64, err error) {
	db, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return 0, err
	}
	err = db.QueryRow(ctx, `SELECT pg_database_size(current_database())`).Scan(&n)
	return n, errors.Join(err, db.Close(ctx))
}

func execute(ctx context.Context, database, statement string) error {
	db, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, statement)
	return errors.Join(err, db.Close(ctx))
}
