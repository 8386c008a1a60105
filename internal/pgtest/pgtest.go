// Package pgtest gives each test a PostgreSQL database of its own: migrated, empty, and dropped when the test ends.
//
// The first test of a process that asks starts a private server (see mlsd/internal/localpg) in a temporary directory, tuned to
// forget everything in a crash, and migrates one template database that the others are cloned from. It ends with the process and a
// helper removes its directory; what even that misses, the next process does.
//
// With MLSD_TEST_DATABASE_URL set, to a URL whose user may create databases, that server is used instead.
package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

const (
	setupLimit   = 2 * time.Minute  // first use: initdb and migrations, on a busy machine
	cleanupLimit = 30 * time.Second // giving one database back

	defaultMaxConns = 8
)

// shared is the server of this process, started when first asked for and never stopped: it goes with the process.
var shared = sync.OnceValues(func() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	return newServer(ctx)
})

// Option changes the pool that a test gets.
type Option func(*pgxpool.Config)

// MaxConns sets the largest number of connections of the pool; the default is 8. The server allows 400 in all.
func MaxConns(n int32) Option {
	return func(cfg *pgxpool.Config) { cfg.MaxConns = n }
}

// Database returns a pool on a fresh, migrated database, with the session settings that the server has. At the end of the test it is closed and the database dropped.
func Database(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	return connect(t, create(t, true), opts)
}

// Empty is Database without migrations.
func Empty(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	return connect(t, create(t, false), opts)
}

// URL returns the connection string of a fresh, migrated database, for tests that boot a server. The database is dropped at the end of
// the test, whoever is still connected.
func URL(t testing.TB) string {
	t.Helper()
	return create(t, true)
}

// EmptyURL is URL without migrations.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return create(t, false)
}

// create makes a database that lives as long as the test, and returns its URL.
func create(t testing.TB, migrated bool) string {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	// Not t.Context(): a test that is being cancelled may still want its database, and must give it back.
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	name, err := s.create(ctx, migrated)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s.url(name)
}

// connect opens a pool that is closed at the end of the test. A connection that the test did not give back fails it.
func connect(t testing.TB, url string, opts []Option) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgpool.Config(url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = defaultMaxConns
	for _, o := range opts {
		o(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
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
