package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// child is mlsd in a process of its own, which a test can kill.
type child struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.Closer
	admin, public  string
	stdout, stderr *output
	ended          chan struct{}
}

// spawn starts mlsd on a data directory, with failpoints, and waits until it is ready. env adds
// environment variables.
func spawn(t *testing.T, dir string, env ...string) *child {
	t.Helper()
	c := start(t, dir, env)
	found := c.stdout.await(t, readyLines(), c.ended)
	if found == nil {
		t.Fatalf("mlsd ended before it was ready; stdout %q, stderr %q", c.stdout, c.stderr)
	}
	c.admin, c.public = "http://"+found[1], "http://"+found[2]
	return c
}

// start starts mlsd in a process of its own, with arguments. Tests that do this are not among those
// of -short.
func start(t *testing.T, dir string, env []string, args ...string) *child {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(exe, args...), stdout: newOutput(), stderr: newOutput(),
		ended: make(chan struct{})}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "MLSD_") {
			c.cmd.Env = append(c.cmd.Env, entry)
		}
	}
	c.cmd.Env = append(c.cmd.Env, childEnv+"=1", "MLSD_LISTEN=127.0.0.1:0", "MLSD_ADMIN_LISTEN=127.0.0.1:0",
		"MLSD_DATA_DIR="+dir,
		"MLSD_FAILPOINTS=true", "MLSD_SERVICE_DID="+serviceDID, "MLSD_LOG_FORMAT=text", "MLSD_RATE_DID=1e6/1000000",
		"MLSD_RATE_IP=1e6/1000000")
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.Stdout, c.cmd.Stderr = c.stdout, c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		var exit *exec.ExitError
		if err := c.cmd.Wait(); err != nil && !errors.As(err, &exit) { // the exit status is in ProcessState
			t.Errorf("wait for mlsd: %v", err)
		}
	}()
	t.Cleanup(func() {
		c.kill()
		if pid := postmaster(t, dir); pid != 0 {
			wantNoOrphan(t, pid) // the test removes its directory later
		}
		if t.Failed() {
			t.Logf("log of mlsd:\n%s", c.stderr)
		}
	})
	return c
}

// spawn starts mlsd as this world's server.
func (w *world) spawn(t *testing.T, dir string, env ...string) *child {
	t.Helper()
	c := spawn(t, dir, append(env, "MLSD_PLC_URL="+w.plc.URL)...)
	w.use(c.admin, c.public)
	return c
}

// kill sends SIGKILL.
func (c *child) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Error(err)
	}
	c.wait()
}

// wait waits for the end of the process and returns its status.
func (c *child) wait() syscall.WaitStatus {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(deadline):
		c.t.Fatalf("mlsd did not end in %v", deadline)
	}
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		c.t.Fatalf("unknown process state %v", c.cmd.ProcessState)
	}
	return status
}

func (c *child) signal(sig os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatal(err)
	}
}
