package pgpool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	for _, c := range []struct {
		name         string
		open         func(context.Context, string) (*pgxpool.Pool, error)
		url          string
		setting      string
		want         string
		wantMaxConns int32 // 0: any
	}{
		{"requests", pgpool.Open, url, "lock_timeout", "2s", 0},
		{"requests", pgpool.Open, url, "enable_seqscan", "off", 0},
		{"requests", pgpool.Open, url + "&enable_seqscan=on", "enable_seqscan", "on", 0},
		{"requests", pgpool.Open, url + "&lock_timeout=7000&pool_max_conns=3", "lock_timeout", "7s", 3},
		{"reserved", pgpool.OpenReserved, url, "plan_cache_mode", "force_generic_plan", 13},
		{"reserved", pgpool.OpenReserved, url + "&pool_max_conns=3", "lock_timeout", "2s", 13},
		{"maintenance", pgpool.OpenMaintenance, url, "lock_timeout", "2s", 4},
		{"maintenance", pgpool.OpenMaintenance, url, "enable_seqscan", "on", 4},
		{"maintenance", pgpool.OpenMaintenance, url, "plan_cache_mode", "auto", 4},
	} {
		pool, err := c.open(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var got string
		if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, c.setting).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s, %s: %s is %q, %v; want %q", c.name, c.url, c.setting, got, err, c.want)
		}
		if got := pool.Config().MaxConns; c.wantMaxConns != 0 && got != c.wantMaxConns {
			t.Errorf("%s, %s: %d connections, want %d", c.name, c.url, got, c.wantMaxConns)
		}
	}
	for _, open := range []func(context.Context, string) (*pgxpool.Pool, error){pgpool.Open, pgpool.OpenReserved, pgpool.OpenMaintenance} {
		if _, err := open(t.Context(), "postgres://%"); err == nil {
			t.Error("an invalid URL was accepted")
		}
	}
}

// Unavailable reports the errors after which a request can succeed later. The errors are those of a
// real server.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	exec := func(sql string) error {
		_, err := db.Exec(t.Context(), sql)
		return err
	}
	terminated := func() error {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }() // its connection is gone
		if err := exec(fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, tx.Conn().PgConn().PID())); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), `SELECT 1`)
		return err
	}
	refused := func() error {
		_, err := pgx.Connect(t.Context(), "postgres://mlsd@127.0.0.1:1/mlsd?sslmode=disable")
		return err
	}
	closed := func() error {
		pool, err := pgpool.Open(t.Context(), pgtest.EmptyURL(t))
		if err != nil {
			t.Fatal(err)
		}
		pool.Close()
		return pool.Ping(t.Context())
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"closed pool":        {closed(), true},
		"terminated backend": {terminated(), true},
		"connection refused": {refused(), true},
		"statement timeout":  {exec(`SET statement_timeout = 1; SELECT pg_sleep(60)`), true},
		"raised too busy":    {exec(`DO $$ BEGIN RAISE SQLSTATE '53300'; END $$`), true},
		"lock timeout":       {&pgconn.PgError{Code: "55P03"}, true},
		"deadlock":           {fmt.Errorf("append: %w", &pgconn.PgError{Code: "40P01"}), true},
		"read-only standby":  {exec(`SET transaction_read_only = on; CREATE TABLE x ()`), true},
		"unique violation":   {exec(`CREATE TABLE y (a int PRIMARY KEY); INSERT INTO y VALUES (1), (1)`), false},
		"syntax error":       {exec(`SELEC`), false},
		"our own":            {errors.New("no"), false},
		"none":               {nil, false},
	} {
		if c.err == nil && name != "none" {
			t.Errorf("%s: there was no error", name)
		}
		if got := pgpool.Unavailable(c.err); got != c.want {
			t.Errorf("%s (%v): unavailable %v, want %v", name, c.err, got, c.want)
		}
	}
}
