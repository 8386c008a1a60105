package pgtest

import (
	"context"
	"errors"
	"testing"

	"mlsd/internal/localpg"
	"mlsd/internal/testdir"
	"mlsd/migrations"
)

// Templates are clusters with a migrated database, made once. Those of different names are never
// taken for each other: PostgreSQL gives each cluster an identifier.
const (
	serverTemplate = "server"
	pairTemplate   = "pair"
)

// DataDir returns a data directory of mlsd that has served: its PostgreSQL and its database are made.
// The end of the test removes it.
func DataDir(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	dir := testdir.For(t)
	if err := copyTemplate(ctx, serverTemplate, dir); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return dir
}

// copyTemplate copies a template into a data directory.
func copyTemplate(ctx context.Context, name, dataDir string) error {
	return testdir.Copy(name, dataDir, func(dir string) error { return makeTemplate(ctx, dir) })
}

// makeTemplate makes a cluster in a data directory, with the database of mlsd.
func makeTemplate(ctx context.Context, dir string) (err error) {
	downloads, err := testdir.Downloads()
	if err != nil {
		return err
	}
	server, err := localpg.Start(ctx, localpg.Config{DataDir: dir, DownloadDir: downloads, Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "min_wal_size": "32MB", "dynamic_shared_memory_type": "mmap",
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	if err := server.EnsureDatabase(ctx, localpg.Database); err != nil {
		return err
	}
	return migrations.Up(ctx, server.ConnString(localpg.Database))
}
