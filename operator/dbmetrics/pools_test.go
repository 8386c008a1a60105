package dbmetrics_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"mlsd/internal/pgtest"
	"mlsd/operator/dbmetrics"
)

// A pool's figures show what is in use, and that a caller has waited.
func TestPools(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.EmptyURL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	held, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := pool.Acquire(waiting); err == nil {
		t.Fatal("a pool of one connection gave two")
	}
	want := `
		# HELP mlsd_pool_acquires_canceled_total Times that a wait for a connection of a pool was given up.
		# TYPE mlsd_pool_acquires_canceled_total counter
		mlsd_pool_acquires_canceled_total{pool="requests"} 1
		# HELP mlsd_pool_connections_acquired Connections of a pool that are in use.
		# TYPE mlsd_pool_connections_acquired gauge
		mlsd_pool_connections_acquired{pool="requests"} 1
		# HELP mlsd_pool_connections_max Connections to the database that a pool can have.
		# TYPE mlsd_pool_connections_max gauge
		mlsd_pool_connections_max{pool="requests"} 1
	`
	pools := dbmetrics.NewPools(map[string]*pgxpool.Pool{"requests": pool})
	if err := testutil.CollectAndCompare(pools, strings.NewReader(want),
		"mlsd_pool_acquires_canceled_total", "mlsd_pool_connections_acquired", "mlsd_pool_connections_max"); err != nil {
		t.Error(err)
	}
	held.Release()
	if problems, err := testutil.CollectAndLint(pools); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
