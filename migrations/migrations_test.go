package migrations_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/migrations"
)

func tables(t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	err = conn.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'schema_migrations'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pairs returns the number of migrations. Their version numbers can have gaps.
func pairs(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	return len(files)
}

// TestUpDownUp reverts every migration. No table remains.
func TestUpDownUp(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	version := func() uint {
		t.Helper()
		v, err := migrations.Version(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if version() != 0 {
		t.Fatal("an empty database has a version")
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	newest, full := version(), tables(t, url)
	if newest == 0 || full == 0 {
		t.Fatalf("version %d, %d tables", newest, full)
	}
	if err := migrations.Down(t.Context(), url, pairs(t)); err != nil {
		t.Fatal(err)
	}
	if version() != 0 || tables(t, url) != 0 {
		t.Fatalf("after down: version %d, %d tables", version(), tables(t, url))
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if version() != newest || tables(t, url) != full {
		t.Fatalf("after up again: version %d, %d tables", version(), tables(t, url))
	}
	if err := migrations.Down(t.Context(), url, 0); err == nil {
		t.Fatal("down by nothing")
	}
}

// TestLedgerDown reverts to the first schema. KeyPackages in states that it does not have get the
// state that it uses in their case.
func TestLedgerDown(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	_, err = conn.Exec(t.Context(), `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		SELECT 'did:plc:alice', state::bytea, '', 1, '', now(), false, state, now()
		FROM unnest(ARRAY['available', 'claimed', 'consumed', 'expired', 'orphaned']) AS state`)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Down(t.Context(), url, pairs(t)-1); err != nil {
		t.Fatal(err)
	}
	var states string
	err = conn.QueryRow(t.Context(), `SELECT string_agg(state, ' ' ORDER BY ref) FROM key_packages`).Scan(&states)
	if err != nil || states != "available claimed consumed available claimed" {
		t.Fatalf("%q, %v", states, err)
	}
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
}

// TestUpAtOnce migrates a new database from several nodes at the same time.
func TestUpAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := migrations.Up(t.Context(), url); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestPoolSettings migrates with a URL that has settings of the pool.
func TestPoolSettings(t *testing.T) {
	t.Parallel()
	if err := migrations.Up(t.Context(), pgtest.EmptyURL(t)+"&pool_max_conns=3"); err != nil {
		t.Fatal(err)
	}
}
