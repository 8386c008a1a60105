package testdir

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
	timeout := time.After(time.Minute)
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
