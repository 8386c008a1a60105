package main

import (
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// A process that is asked to end ends in order, with PostgreSQL, and says so with its exit code.
func TestSignalEndsInOrder(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := spawn(t, dir)
	pid := postmaster(t, dir)
	c.signal(syscall.SIGTERM)
	if status := c.wait(); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("ended with %v", c.cmd.ProcessState)
	}
	if alive(pid) || postmaster(t, dir) != 0 {
		t.Error("PostgreSQL was not shut down")
	}

	// The second signal does not wait for whoever the first one waits for.
	w := newWorld(t)
	c = w.spawn(t, dir)
	pid = postmaster(t, dir)
	s := w.user().startSlow()
	defer s.abandon()
	c.signal(os.Interrupt)
	eventually(t, "the server is not ready any more", func() bool {
		status, _ := fetch(t, w.admin+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	eventually(t, "the second signal ended it", func() bool {
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
	dir := dataDir(t)
	for range 2 {
		c := spawn(t, dir)
		pid := postmaster(t, dir)
		if !alive(pid) {
			t.Fatal("no PostgreSQL to begin with")
		}
		c.kill()
		wantNoOrphan(t, pid)
	}
	// Without a pause in between, too: the old PostgreSQL may still be shutting down.
	spawn(t, dir).kill()
	spawn(t, dir)
}

// wantNoOrphan waits until PostgreSQL has followed a mlsd that was killed.
func wantNoOrphan(t *testing.T, pid int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return // elsewhere the next start stops it
	}
	eventually(t, "PostgreSQL went with mlsd", func() bool { return !alive(pid) })
}
