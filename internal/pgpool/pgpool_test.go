package pgpool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	repeatableRead(t, url)
	for _, c := range []struct {
		name         string
		open         func(context.Context, string, ...pgpool.Option) (*pgxpool.Pool, error)
		url          string
		setting      string
		want         string
		wantMaxConns int32 // 0: any
	}{
		{"requests", pgpool.Open, url, "lock_timeout", "2s", 0},
		{"requests", pgpool.Open, url, "enable_seqscan", "off", 0},
		{"requests", pgpool.Open, url + "&enable_seqscan=on", "enable_seqscan", "on", 0},
		// X5: with another level a former member's commit was accepted.
		{"requests", pgpool.Open, url + "&default_transaction_isolation=serializable", "transaction_isolation",
			"read committed", 0},
		{"requests", pgpool.Open, url, "transaction_isolation", "read committed", 0},
		{"reserved", pgpool.OpenReserved, url, "transaction_isolation", "read committed", 14},
		{"requests", pgpool.Open, url + "&lock_timeout=7000&pool_max_conns=3", "lock_timeout", "7s", 3},
		{"reserved", pgpool.OpenReserved, url, "plan_cache_mode", "force_generic_plan", 14},
		{"reserved", pgpool.OpenReserved, url + "&lock_timeout=7000&pool_max_conns=3", "lock_timeout", "250ms", 14},
		{"maintenance", pgpool.OpenMaintenance, url, "lock_timeout", "2s", 4},
		{"maintenance", pgpool.OpenMaintenance, url, "jit", "off", 4},
		{"maintenance", pgpool.OpenMaintenance, url, "enable_seqscan", "on", 4},
		{"maintenance", pgpool.OpenMaintenance, url, "plan_cache_mode", "auto", 4},
	} {
		pool, err := c.open(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var got string
		if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, c.setting).Scan(&got); err != nil ||
			got != c.want {
			t.Errorf("%s, %s: %s is %q, %v; want %q", c.name, c.url, c.setting, got, err, c.want)
		}
		if got := pool.Config().MaxConns; c.wantMaxConns != 0 && got != c.wantMaxConns {
			t.Errorf("%s, %s: %d connections, want %d", c.name, c.url, got, c.wantMaxConns)
		}
	}
	for _, open := range []func(context.Context, string, ...pgpool.Option) (*pgxpool.Pool, error){pgpool.Open,
		pgpool.OpenReserved, pgpool.OpenMaintenance} {
		if _, err := open(t.Context(), "postgres://%"); err == nil {
			t.Error("an invalid URL was accepted")
		}
	}
}

// repeatableRead makes that level the default of the database.
func repeatableRead(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `
		DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), 'repeatable read');
		END $$`); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// X2: the end of a connection while a statement is prepared is not the statement's fault.
func TestEOFWhilePreparing(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), dyingServer(t))
	if err != nil {
		t.Fatal(err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT $1::int`, 1)
	err = conn.SendBatch(t.Context(), batch).Close()
	if !errors.As(err, new(pgx.ErrPreprocessingBatch)) || !pgpool.Unavailable(err) {
		t.Errorf("%v: unavailable %v", err, pgpool.Unavailable(err))
	}
}

// dyingServer is the URL of a server that ends a connection when it gets the first statement.
func dyingServer(t *testing.T) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return // the test is over
		}
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err == nil {
			backend.Send(&pgproto3.AuthenticationOk{})
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			if err = backend.Flush(); err == nil {
				_, _ = backend.Receive()
			}
		}
		_ = conn.Close() // what the client sees is what the test is about
	}()
	return fmt.Sprintf("postgres://mlsd@%s/mlsd?sslmode=disable", listener.Addr())
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
	noDatabase := func() error { // one that refuses connections, as ALLOW_CONNECTIONS false makes it
		config, err := pgx.ParseConfig(pgtest.EmptyURL(t))
		if err != nil {
			t.Fatal(err)
		}
		config.Database = "template0"
		_, err = pgx.ConnectConfig(t.Context(), config)
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
	noConnection := func() error { // the only connection is never free before the deadline
		pool, err := pgpool.Open(t.Context(), pgtest.EmptyURL(t)+"&pool_max_conns=1")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		return pool.Ping(ctx)
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"no connection free": {noConnection(), true},
		"closed pool":        {closed(), true},
		"terminated backend": {terminated(), true},
		"connection refused": {refused(), true},
		"no connections":     {noDatabase(), true},
		"statement timeout":  {exec(`SET statement_timeout = 1; SELECT pg_sleep(60)`), true},
		"raised too busy":    {exec(`DO $$ BEGIN RAISE SQLSTATE '53300'; END $$`), true},
		"lock timeout":       {&pgconn.PgError{Code: "55P03"}, true},
		"deadlock":           {fmt.Errorf("append: %w", &pgconn.PgError{Code: "40P01"}), true},
		"read-only standby":  {exec(`SET transaction_read_only = on; CREATE TABLE x ()`), true},
		"unique violation":   {exec(`CREATE TABLE y (a int PRIMARY KEY); INSERT INTO y VALUES (1), (1)`), false},
		"syntax error":       {exec(`SELEC`), false},
		"end of connection":  {fmt.Errorf("append: %w", io.ErrUnexpectedEOF), true},
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
