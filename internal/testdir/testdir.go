// Package testdir makes directories for what tests store, in memory if there is enough. A database
// is some hundred files, and making them on a disk takes most of the time of a short test.
//
// A directory belongs to one process. A helper removes it when the process ends. If the helper
// fails, the next process removes it.
package testdir

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const (
	memoryDir = "/dev/shm"
	minMemory = 4 << 30 // bytes that must be free in memoryDir
)

// Dir is a directory of this process.
type Dir struct {
	Path  string
	lock  *os.File // flock on the directory's lock file, held until this process ends
	watch *os.File // the end of this process closes it; the helper that removes Path waits for that
}

// claimed is the directory of the tests of this process.
var claimed = sync.OnceValues(Claim)

// For returns a new directory that the end of the test removes. Every account may enter it, because
// a test that runs as root starts PostgreSQL as another account. On some systems nothing in it can
// be executed.
func For(t testing.TB) string {
	t.Helper()
	of, err := claimed()
	if err != nil {
		t.Fatalf("testdir: %v", err)
	}
	dir, err := os.MkdirTemp(of.Path, "test-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatalf("testdir: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("testdir: %v", err)
		}
	})
	return dir
}

// Claim makes a directory that belongs to this process, until it ends. It first removes the
// directories of processes that have ended.
func Claim() (*Dir, error) {
	base, err := baseDir()
	if err != nil {
		return nil, err
	}
	return claimIn(base)
}

func claimIn(base string) (*Dir, error) {
	d, err := claim(base)
	if err != nil {
		return nil, fmt.Errorf("directory for tests: %w", err)
	}
	if d.watch, err = removeAtExit(d.Path); err != nil {
		return nil, errors.Join(err, d.Remove())
	}
	return d, nil
}

// claim makes the directory. It holds the lock of base until the directory has its own lock. So no
// other process takes a directory that is still being made for an abandoned one.
func claim(base string) (_ *Dir, err error) {
	baseLock, err := lockFile(filepath.Join(base, "lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, baseLock.Close()) }()
	if err := removeAbandonedDirs(base); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o711); err != nil { // the server may run as another account
		return nil, err
	}
	lock, err := lockFile(path+".lock", syscall.LOCK_EX|syscall.LOCK_NB)
	return &Dir{Path: path, lock: lock}, err
}

// Remove removes the directory before the process ends.
func (d *Dir) Remove() error {
	err := errors.Join(os.RemoveAll(d.Path), os.Remove(d.Path+".lock"), d.lock.Close())
	if d.watch != nil {
		err = errors.Join(err, d.watch.Close())
	}
	return err
}

// parentDir returns the directory for what tests store. It is in memory, if there is enough, unless
// TMPDIR names another directory. Benchmarks use the disk: some store much, and some measure the
// disk.
func parentDir() string {
	var fs syscall.Statfs_t
	bench := flag.Lookup("test.bench")
	switch {
	case os.Getenv("TMPDIR") != "", bench != nil && bench.Value.String() != "":
	case syscall.Statfs(memoryDir, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= minMemory:
		return memoryDir
	}
	return os.TempDir()
}

// Downloads returns the directory for a downloaded PostgreSQL. All processes share it.
func Downloads() (string, error) {
	base, err := dirOfUser(os.TempDir())
	return filepath.Join(base, "pgbin"), err
}

// baseDir returns the directory that contains the directories of all test processes of this user.
func baseDir() (string, error) { return dirOfUser(parentDir()) }

// dirOfUser is the directory of this user in parent. A server that runs as another account can
// enter the directory.
func dirOfUser(parent string) (string, error) {
	return OfUser(filepath.Join(parent, "mlsd-pgtest-"+strconv.Itoa(os.Geteuid())), 0o711)
}

// OfUser makes a directory of this user with a mode, unless it exists, and returns its path. It
// fails if the directory belongs to another user.
func OfUser(path string, mode os.FileMode) (string, error) {
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not a directory of ours", path)
	}
	return path, os.Chmod(path, mode)
}

// removeAbandonedDirs removes the directories whose owner has ended. It skips a directory whose
// server still shuts down.
func removeAbandonedDirs(base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".lock")
		if !ok {
			continue
		}
		dir, path := filepath.Join(base, name), filepath.Join(base, e.Name())
		lock, err := lockFile(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(removeRun(dir, path), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// removeRun removes a directory and then its lock file. The owner's helper can do the same at the
// same time.
func removeRun(dir, lock string) error {
	if !abandoned(dir) {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Remove(lock); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
