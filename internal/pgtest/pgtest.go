// Package pgtest gives each test its own PostgreSQL database. The database is migrated and empty,
// and is dropped when the test ends.
//
// The first call in a process starts a private server (see mlsd/internal/localpg) in a temporary
// directory. The server's settings are fast, but not safe in a crash. The call migrates one
// template database, from which all other databases are cloned. The server ends with the process. A
// helper process removes the server's directory. If the helper fails, the next process removes it.
package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

const (
	setupLimit   = 2 * time.Minute // for initdb and migrations, on a busy machine
	cleanupLimit = time.Minute     // for dropping one database

	defaultMaxConns = 8
)

// shared starts the server of this process on the first call.
var shared = sync.OnceValues(func() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	return newServer(ctx)
})

// Option changes the pool that a test gets.
type Option func(*pgxpool.Config)

// MaxConns sets the largest number of connections of the pool. The default is 8. The server allows
// 400 connections in all.
func MaxConns(n int32) Option {
	return func(cfg *pgxpool.Config) { cfg.MaxConns = n }
}

// Role sets the role of the pool's sessions.
func Role(name string) Option {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = name }
}

// Database returns a pool on a new, migrated database, with the session settings of mlsd. When the
// test ends, the pool is closed and the database is dropped.
func Database(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	return Connect(t, create(t, true), opts...)
}

// Empty is Database without migrations.
func Empty(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	return Connect(t, create(t, false), opts...)
}

// URL returns the connection string of a new, migrated database, for tests that start a server.
// When the test ends, connections to the database are ended and it is dropped.
func URL(t testing.TB) string {
	t.Helper()
	return create(t, true)
}

// EmptyURL is URL without migrations.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return create(t, false)
}

// Session returns one connection to a database, without mlsd's session settings. The connection is
// closed when the test ends.
func Session(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		if err := conn.Close(ctx); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return conn
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// create makes a database and returns its URL. The database is dropped when the test ends.
func create(t testing.TB, migrated bool) string {
	t.Helper()
	s, err := shared()
	must(t, err)
	// This does not use t.Context(), because a test whose context is cancelled can still use a
	// database, and must drop it.
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	name, err := s.create(ctx, migrated)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s.pg.ConnString(name)
}

// Connect opens a pool, which is closed when the test ends. The test fails if it did not release a
// connection.
func Connect(t testing.TB, url string, opts ...Option) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgpool.Config(url)
	must(t, err)
	cfg.MaxConns = defaultMaxConns
	for _, o := range opts {
		o(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	must(t, err)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		timeout := time.NewTimer(cleanupLimit)
		defer timeout.Stop()
		select {
		case <-closed:
		case <-timeout.C:
			t.Errorf("pgtest: %d connections were not given back to the pool", pool.Stat().AcquiredConns())
		}
	})
	return pool
}
