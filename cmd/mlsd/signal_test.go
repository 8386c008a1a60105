package main

import (
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// A process that gets a signal stops PostgreSQL, shuts down and exits with 0.
func TestSignalEndsInOrder(t *testing.T) {
	t.Parallel()
	dir := pgtest.DataDir(t)
	c := spawn(t, dir)
	pid := postmaster(t, dir)
	c.signal(syscall.SIGTERM)
	if status := c.wait(); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("ended with %v", c.cmd.ProcessState)
	}
	if alive(pid) || postmaster(t, dir) != 0 {
		t.Error("PostgreSQL was not shut down")
	}

	// After the first signal the process waits for requests. The second signal ends it at once.
	w := newWorld(t)
	c = w.spawn(t, dir)
	pid = postmaster(t, dir)
	s := w.user().startSlow()
	defer s.abandon()
	c.signal(os.Interrupt)
	await.Until(t, "the server is not ready any more", func() bool {
		status, _ := fetch(t, w.admin+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	await.Until(t, "the second signal ended it", func() bool {
		c.signal(os.Interrupt)
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	})
	if status := c.wait(); !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v", c.cmd.ProcessState)
	}
	wantNoOrphan(t, pid)
}

func TestKilledLeavesNoPostgreSQL(t *testing.T) {
	t.Parallel()
	dir := pgtest.DataDir(t)
	for range 2 {
		c := spawn(t, dir)
		pid := postmaster(t, dir)
		if !alive(pid) {
			t.Fatal("no PostgreSQL to begin with")
		}
		c.kill()
		wantNoOrphan(t, pid)
	}
	// The next start follows at once: the old PostgreSQL is possibly still shutting down.
	spawn(t, dir).kill()
	spawn(t, dir)
}

// wantNoOrphan waits until the PostgreSQL of an mlsd that was killed has ended.
func wantNoOrphan(t *testing.T, pid int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return // on other systems the next start stops it
	}
	await.Until(t, "PostgreSQL went with mlsd", func() bool { return !alive(pid) })
}
