package localpg

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// PostgreSQL refuses to start while the shared memory of a killed postmaster is in use. Here this
// test uses it, until it reads the refusal in the log.
func TestSharedMemoryOfKilledPostmaster(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	detach := attachMemory(t, filepath.Join(dir, "postgres"))
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Stop(t.Context()); err == nil {
		t.Error("Stop does not tell that the server died")
	}
	var refused atomic.Bool
	log := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte(memoryInUse)) {
			refused.Store(true)
			detach()
		}
		return len(line), nil
	}), nil))
	if s := start(t, Config{DataDir: dir, Logger: log}); stored(t, s) != 1 {
		t.Error("a committed row is lost")
	}
	if !refused.Load() {
		t.Error("PostgreSQL did not refuse to start: this test tests nothing")
	}
}

// attachMemory attaches this process to the shared memory of a running server.
func attachMemory(t *testing.T, clusterDir string) (detach func()) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(clusterDir, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var key, id uintptr
	if _, err := fmt.Sscan(strings.Split(string(data), "\n")[6], &key, &id); err != nil {
		t.Fatal(err)
	}
	addr, _, errno := syscall.Syscall(syscall.SYS_SHMAT, id, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	detach = sync.OnceFunc(func() {
		if _, _, errno := syscall.Syscall(syscall.SYS_SHMDT, addr, 0, 0); errno != 0 {
			t.Error(errno)
		}
	})
	t.Cleanup(detach)
	return detach
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
