// Package testbedtest has helpers for tests that need a PLC directory or a server.
package testbedtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/testdir"
)

// BuildServer builds mlsd into dir, which has to be in the directory of temporary files. The linked
// binary is kept beside dir for the other packages, because linking takes longer than most tests.
func BuildServer(ctx context.Context, dir string) (binary string, err error) {
	kept, err := testdir.OfUser(filepath.Join(os.TempDir(), "mlsd-testbed-"+strconv.Itoa(os.Geteuid())), 0o700)
	if err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(kept, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	built, err := testbed.BuildServer(ctx, kept)
	if err != nil {
		return "", err
	}
	// The next build can be of another source. It replaces the file, and not what a link names.
	binary = filepath.Join(dir, "mlsd")
	return binary, os.Link(built, binary)
}

// process is the binary of this process.
var process struct {
	sync.Once
	dir, binary string
	err         error
}

// Binary returns a mlsd that this process builds once. The package's TestMain calls Run.
func Binary(t *testing.T) string {
	t.Helper()
	process.Do(func() {
		if process.dir, process.err = os.MkdirTemp("", "mlsd-test-"); process.err == nil {
			process.binary, process.err = BuildServer(context.Background(), process.dir)
		}
		process.err = errors.Join(process.err, useMemory())
	})
	if process.err != nil {
		t.Fatal(process.err)
	}
	return process.binary
}

// useMemory puts the PostgreSQL servers that this process starts from now on into memory, if there
// is enough. Those of benchmarks begin with 1 GiB of WAL.
func useMemory() error {
	const memory, least = "/dev/shm", 4 << 30
	if _, err := testbed.StandbyPrograms(); err != nil {
		return nil // one is downloaded, and not all systems execute what is there
	}
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") == "" && syscall.Statfs(memory, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= least {
		return os.Setenv("TMPDIR", memory)
	}
	return nil
}

// Run runs the tests of a package that uses Binary, and returns the exit code.
func Run(m *testing.M) int {
	code := m.Run()
	if process.dir != "" {
		if err := os.RemoveAll(process.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(code, 1)
		}
	}
	return code
}

// Server starts a mlsd with these settings, which name its database, until the test ends.
func Server(t *testing.T, dir *testbed.Directory, settings map[string]string) *testbed.Proc {
	t.Helper()
	home := t.TempDir()
	binary, err := BuildServer(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	server := testbed.NewProc(binary, filepath.Join(home, "data"), dir.URL, xrpc.DefaultServiceDID)
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Start(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	return server
}

// Directory serves a PLC directory until the test ends.
func Directory(t *testing.T) *testbed.Directory {
	t.Helper()
	d, err := testbed.NewDirectory("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
