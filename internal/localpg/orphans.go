package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mlsd/internal/worker"
)

const (
	orphanPoll = 20 * time.Millisecond // the end of a process that is no child gives no signal
	orphanFast = 60 * time.Second      // a fast shutdown writes a checkpoint
)

// stopOrphan prepares the start of a cluster whose earlier owner has ended, as the lock of this
// process shows. stopOrphan stops the earlier postmaster, if it still runs. Backends that outlive
// their postmaster keep its shared memory: see run.
//
// If another process, or a zombie, has the pid in postmaster.pid, PostgreSQL would refuse to start.
// Then stopOrphan writes the pid of this process into the file, because PostgreSQL ignores the pid
// of its parent. The rest of the file stays. It names the shared memory, which must be gone.
func (c *cluster) stopOrphan(ctx context.Context) error {
	if err := c.stopPostmaster(ctx); err != nil {
		return err
	}
	file, err := c.readPIDFile()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || file.pid == 0 || errors.Is(syscall.Kill(file.pid, 0), syscall.ESRCH) {
		return err
	}
	c.log.Warn("the process id in postmaster.pid is in other use", "pid", file.pid, "dir", c.dir)
	return c.writeOwned(c.pidFile(), strconv.Itoa(os.Getpid())+"\n"+file.rest)
}

// stopPostmaster stops the postmaster that postmaster.pid names, if it runs.
func (c *cluster) stopPostmaster(ctx context.Context) error {
	file, err := c.readPIDFile()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// On Linux this is a handle of the process: the signals cannot reach a later process with the
	// same pid.
	p, err := os.FindProcess(file.pid)
	if err != nil {
		return fmt.Errorf("orphaned PostgreSQL: %w", err)
	}
	for _, step := range []struct {
		sig   os.Signal
		limit time.Duration
	}{{syscall.SIGINT, orphanFast}, {syscall.SIGQUIT, immediateStop}} {
		if !isPostmaster(file.pid, c.dir) {
			return nil
		}
		c.log.Warn("stopping a PostgreSQL that lost its owner", "pid", file.pid, "dir", c.dir, "signal", step.sig.String())
		if err := p.Signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("orphaned PostgreSQL (pid %d): %w", file.pid, err)
		}
		if err := c.awaitEnd(ctx, file.pid, step.limit); err != nil {
			return err
		}
	}
	if isPostmaster(file.pid, c.dir) {
		return fmt.Errorf("orphaned PostgreSQL (pid %d) does not stop", file.pid)
	}
	return nil
}

// awaitEnd waits until the postmaster has ended, but no longer than limit.
func (c *cluster) awaitEnd(ctx context.Context, pid int, limit time.Duration) error {
	end := time.Now().Add(limit)
	for isPostmaster(pid, c.dir) && time.Now().Before(end) {
		if worker.Pause(ctx, orphanPoll); ctx.Err() != nil {
			return fmt.Errorf("waiting for the end of an orphaned PostgreSQL (pid %d): %w", pid, context.Cause(ctx))
		}
	}
	return nil
}

// isPostmaster reports whether a process is a postmaster of the cluster in dir. The command line of
// a postmaster contains the directory. A zombie has no command line.
func isPostmaster(pid int, dir string) bool {
	var text []byte
	var err error
	if runtime.GOOS == "linux" {
		text, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		text = bytes.ReplaceAll(text, []byte{0}, []byte(" "))
	} else {
		text, err = exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	}
	return err == nil && strings.Contains(string(text), "postgres -D "+dir+" ")
}

// pidFile is the content of postmaster.pid.
type pidFile struct {
	pid       int
	rest      string // the lines after the pid
	socketDir string
	ready     bool // the server accepts connections
}

// readPIDFile reads postmaster.pid. A starting server writes the file line by line.
func (c *cluster) readPIDFile() (f pidFile, err error) {
	text, err := os.ReadFile(c.pidFile())
	if err != nil {
		return f, fmt.Errorf("cluster: %w", err)
	}
	_, f.rest, _ = strings.Cut(string(text), "\n")
	f.pid = pidIn(text)
	if lines := strings.Split(string(text), "\n"); len(lines) >= 8 {
		f.socketDir, f.ready = lines[4], strings.TrimSpace(lines[7]) == "ready"
	}
	return f, nil
}
