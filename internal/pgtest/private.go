package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"mlsd/internal/localpg"
)

// privateServer is the PostgreSQL of this process and its directory.
type privateServer struct {
	pg    *localpg.Server
	dir   string
	lock  *os.File // flock on the directory's lock file, held until this process ends
	watch *os.File // the end of this process closes it; the helper that removes dir waits for that
}

// startPrivate starts a server in a temporary directory. It does not flush to disk.
func startPrivate(ctx context.Context) (*privateServer, error) {
	dir, lock, err := claimDir()
	if err != nil {
		return nil, fmt.Errorf("directory for a private PostgreSQL: %w", err)
	}
	watch, err := removeAtExit(dir)
	if err != nil {
		return nil, err
	}
	downloads, err := downloadDir()
	if err != nil {
		return nil, err
	}
	pg, err := localpg.Start(ctx, localpg.Config{
		DataDir:     dir,
		DownloadDir: downloads,
		Settings: map[string]string{
			"fsync":                      "off",
			"full_page_writes":           "off",
			"synchronous_commit":         "off",
			"max_connections":            "400",
			"shared_buffers":             "32MB",
			"checkpoint_timeout":         "1h",
			"max_wal_size":               "128MB", // it is possibly in memory
			"autovacuum_naptime":         "10min", // a database exists for seconds only
			"dynamic_shared_memory_type": "mmap",  // /dev/shm has 64 MB in many containers
		},
	})
	if err != nil {
		return nil, err
	}
	return &privateServer{pg: pg, dir: dir, lock: lock, watch: watch}, nil
}

// claimDir makes a directory that belongs to this process. It first removes the directories of
// processes that have ended. One lock covers both steps. So no process sees a directory without an
// owner that is still being made.
func claimDir() (_ string, _ *os.File, err error) {
	base, err := baseDir()
	if err != nil {
		return "", nil, err
	}
	baseLock, err := lockFile(filepath.Join(base, "lock"), syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, baseLock.Close()) }()
	if err := removeAbandonedDirs(base); err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the server may run as another account
		return "", nil, err
	}
	lock, err := lockFile(dir+".lock", syscall.LOCK_EX|syscall.LOCK_NB)
	return dir, lock, err
}

const (
	memoryDir   = "/dev/shm"
	leastMemory = 4 << 30 // bytes that must be free in memoryDir
)

// parentDir returns the directory for what tests store: in memory, if there is enough. A database is
// some hundred files, and to make them on a disk takes most of the time of a short test. TMPDIR names
// another directory. Benchmarks use the disk: some fill it, and some measure it.
func parentDir() string {
	var fs syscall.Statfs_t
	bench := flag.Lookup("test.bench")
	switch {
	case os.Getenv("TMPDIR") != "", bench != nil && bench.Value.String() != "":
	case syscall.Statfs(memoryDir, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= leastMemory:
		return memoryDir
	}
	return os.TempDir()
}

// downloadDir returns where a PostgreSQL is kept that was downloaded, for all processes.
func downloadDir() (string, error) {
	base, err := dirOfUser(os.TempDir())
	return filepath.Join(base, "pgbin"), err
}

// baseDir returns the directory with the servers of all test processes of this user.
func baseDir() (string, error) { return dirOfUser(parentDir()) }

// dirOfUser makes a directory of this user in parent, unless it is there.
func dirOfUser(parent string) (string, error) {
	base := filepath.Join(parent, "mlsd-pgtest-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(base, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(base)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not a directory of ours", base)
	}
	return base, os.Chmod(base, 0o711)
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
