package attack

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// server is a mlsd with a database of its own, on the PostgreSQL of an environment.
type server struct {
	*testbed.Proc
	env      *testbed.Environment
	name     string // of the database
	database string // its URL
}

// start starts a binary with its default limits and a new database.
func start(ctx context.Context, e *testbed.Environment, binary, name string) (_ *server, err error) {
	defer Catch(&err)
	Check(e.Execute(ctx, "CREATE DATABASE "+name))
	address := Must(url.Parse(e.Postgres.URL()))
	address.Path = "/" + name
	s := &server{Proc: e.Server(name), env: e, name: name, database: address.String()}
	s.UseBinary(binary)
	s.UseDefaults()
	return s, s.Start(ctx, map[string]string{"MLSD_DATABASE_URL": s.database})
}

// stop kills the server and drops its database. An attacked server may still be busy.
func (s *server) stop(ctx context.Context) error {
	return errors.Join(s.Kill(),
		s.env.Execute(context.WithoutCancel(ctx), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", s.name)))
}

// stored returns the size of the database in bytes.
func (s *server) stored(ctx context.Context) (n int64, err error) {
	err = testbed.Scan(ctx, s.database, `SELECT pg_database_size(current_database())`, nil, &n)
	return n, err
}
