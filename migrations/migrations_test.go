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

// pairs returns the number of migrations.
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
	conn := pgtest.Session(t, url)
	version := func() uint {
		t.Helper()
		s, err := migrations.Read(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		return s.Version
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
