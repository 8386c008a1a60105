// Package standbytest makes, for tests of other packages, reads that use a standby.
package standbytest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby"
)

// Reads returns reads that use the standby of servers. db is a pool of the primary.
func Reads(t testing.TB, db *pgxpool.Pool, servers *pgtest.Pair) *standby.Reads {
	t.Helper()
	config := func(url string) *pgxpool.Config {
		cfg, err := pgpool.Config(url)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	reads := standby.New(standby.Config{
		DB: db, Primary: config(servers.Primary).ConnConfig, Standby: config(servers.Standby),
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() { reads.Run(ctx) })
	Await(t, reads, true)
	return reads
}

// Await waits until reads come from the standby, or from the primary.
func Await(t testing.TB, reads *standby.Reads, fromStandby bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		var from bool
		err := reads.Read(context.Background(), func(ctx context.Context, db *pgxpool.Pool) error {
			return db.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&from)
		})
		switch {
		case err != nil:
			t.Fatal(err)
		case from == fromStandby:
			return
		case time.Now().After(deadline):
			t.Fatalf("no read comes from the standby=%t", fromStandby)
		}
	}
}
