package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRemoveAbandonedDirs(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	mkdir := func(name string) {
		if err := os.MkdirAll(filepath.Join(base, name, "postgres"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(base, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mkdir("run-gone")
	write("run-gone.lock", "")
	mkdir("run-stopping") // its owner has ended, but its server (here: this process) still runs
	write("run-stopping.lock", "")
	write("run-stopping/postgres/postmaster.pid", strconv.Itoa(os.Getpid())+"\n/x\n")
	mkdir("run-crashed")
	write("run-crashed.lock", "")
	write("run-crashed/postgres/postmaster.pid", "999999999\n/x\n")
	mkdir("run-owned")
	lock, err := lockFile(filepath.Join(base, "run-owned.lock"), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		t.Fatal(err)
	}
	if err := removeAbandonedDirs(base); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff([]string{"run-owned", "run-owned.lock", "run-stopping", "run-stopping.lock"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRemoveAtExit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run-1")
	if err := os.MkdirAll(filepath.Join(dir, "postgres"), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := removeAtExit(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil { // the end of this process does the same
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(cleanupLimit)
	for {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("the directory is still there")
		}
	}
}

// The next process drops the databases of a process that has ended, and no others.
func TestDropAbandonedDatabases(t *testing.T) {
	t.Parallel()
	mine := Empty(t)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	const stale, foreign = namePrefix + "00000000_7", namePrefix + "notes"
	for _, name := range []string{stale, foreign} {
		if err := s.createFrom(t.Context(), name, "template0"); err != nil {
			t.Fatal(err)
		}
	}
	other := &server{}
	if err := other.open(t.Context(), s.base.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.tokens.Release(); other.admin.Close() })
	got := map[string]bool{}
	for _, name := range []string{stale, foreign, mine.Config().ConnConfig.Database, s.name("template")} {
		var exists bool
		const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
		if err := s.admin.QueryRow(t.Context(), q, name).Scan(&exists); err != nil {
			t.Fatal(err)
		}
		got[name] = exists
	}
	want := map[string]bool{stale: false, foreign: true, mine.Config().ConnConfig.Database: true, s.name("template"): true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exist (-want +got)\n%s", diff)
	}
	if err := s.drop(t.Context(), foreign); err != nil {
		t.Error(err)
	}
}
