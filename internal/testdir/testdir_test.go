package testdir

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"mlsd/internal/await"

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
	await.Until(t, "the directory is gone", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
}

// Of all that need a template at once, one makes it. A template of another key replaces it. If it
// cannot be made, the next one tries again.
func TestCopyShared(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	var made atomic.Int32
	make := func(content string) func(dir string) error {
		return func(dir string) error {
			made.Add(1)
			cluster := filepath.Join(dir, clusterName)
			return errors.Join(os.Mkdir(cluster, 0o700), os.WriteFile(filepath.Join(cluster, "file"), []byte(content), 0o600))
		}
	}
	wantCopy := func(key, want string) {
		dir := t.TempDir()
		if err := copyShared(base, "a", key, dir, make(want)); err != nil {
			t.Error(err)
			return
		}
		if got, err := os.ReadFile(filepath.Join(dir, clusterName, "file")); string(got) != want {
			t.Errorf("key %s: the copy has %q, %v; want %q", key, got, err, want)
		}
	}
	failed := errors.New("failed")
	err := copyShared(base, "a", "1", t.TempDir(),
		func(dir string) error { return errors.Join(make("half")(dir), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("a template that cannot be made: %v", err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { wantCopy("1", "one") })
	}
	all.Wait()
	if n := made.Load(); n != 2 {
		t.Errorf("the template was made %d times, want one that failed and one", n)
	}
	wantCopy("2", "two")
	left, err := filepath.Glob(filepath.Join(base, "[^l]*"))
	want := []string{filepath.Join(base, "template-a-2"), filepath.Join(base, sharedLock)}
	if diff := cmp.Diff(want, left); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
