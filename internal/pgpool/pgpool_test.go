package pgpool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	for _, c := range []struct{ url, lockTimeout string }{{url, "2s"}, {url + "&lock_timeout=7000", "7s"}} {
		pool, err := pgpool.Open(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var got string
		if err := pool.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&got); err != nil || got != c.lockTimeout {
			t.Errorf("%s: lock_timeout %q, %v", c.url, got, err)
		}
	}
	if cfg, err := pgpool.Config(url + "&pool_max_conns=3"); err != nil || cfg.MaxConns != 3 {
		t.Errorf("the URL's pool size: %+v, %v", cfg, err)
	}
	if _, err := pgpool.Open(t.Context(), "postgres://%"); err == nil {
		t.Error("a URL that is none")
	}
}

// TestUnavailable tells what may succeed later from what never will, by errors that a real server sends.
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
