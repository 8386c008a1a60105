package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"mlsd/internal/localpg"
	"mlsd/internal/testdir"
	"mlsd/migrations"
)

// Templates are clusters with a migrated database, which are made once. PostgreSQL gives each
// cluster an identifier, so templates of different names are never confused.
const (
	serverTemplate = "server"
	pairTemplate   = "pair"
)

// DataDir returns a data directory of an mlsd that has served before, so it contains a PostgreSQL
// and a database. The directory is removed when the test ends.
func DataDir(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	dir := testdir.For(t)
	must(t, copyTemplate(ctx, serverTemplate, dir))
	return dir
}

// copyTemplate copies a template into a data directory.
func copyTemplate(ctx context.Context, name, dataDir string) error {
	key, err := templateKey()
	if err != nil {
		return err
	}
	return testdir.CopyShared(name, key, dataDir, func(dir string) error { return makeTemplate(ctx, dir) })
}

// templateKey is a hash of everything that decides how a template is made. This is the migrations
// in the binary, the sources of the packages that make the template, the programs of PostgreSQL,
// and the day, because some rows contain times.
var templateKey = sync.OnceValues(func() (string, error) {
	_, self, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(self), "..", "..")
	sum := sha256.New()
	if err := hashMigrations(sum); err != nil {
		return "", err
	}
	sources := 0
	for _, pattern := range []string{"migrations/*.go", "internal/localpg/*.go",
		"internal/pgpool/*.go", "internal/pgtest/template.go"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(path), len(text), text)
			sources++
		}
	}
	if sources == 0 { // built with -trimpath, so the template is not shared
		fmt.Fprintln(sum, rand.Text())
	}
	fmt.Fprintln(sum, os.Getenv("PATH"), time.Now().UTC().Format(time.DateOnly))
	for _, dir := range localpg.InstalledDirs() {
		path := filepath.Join(dir, "postgres")
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintln(sum, path, info.Size(), info.ModTime())
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
})

// hashMigrations hashes the embedded migrations. The migrations on disk can differ, because a
// mutant's migrations are elsewhere.
func hashMigrations(sum io.Writer) error {
	files, err := migrations.SQL.ReadDir(".")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := migrations.SQL.ReadFile(file.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n%s", file.Name(), len(text), text)
	}
	return nil
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
	if err := server.EnsureDatabase(ctx); err != nil {
		return err
	}
	return migrations.Up(ctx, server.ConnString(localpg.Database))
}
