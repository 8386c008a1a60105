package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	orphanPoll    = 20 * time.Millisecond // the end of a process that is no child gives no signal
	orphanFast    = 60 * time.Second      // a fast shutdown writes a checkpoint
	backendsLimit = 60 * time.Second      // a backend sees the postmaster's end when it next waits
)

// stopOrphans stops the processes that an earlier owner of the cluster left, so that a server can
// start. There are three cases:
//
//   - A postmaster still runs. Its owner has ended, because this process holds the lock. It gets a
//     fast shutdown.
//   - Only backends run. stopOrphans waits for them. It does not remove postmaster.pid: the next
//     postmaster reads there which shared memory must be gone before it may use the data.
//   - No process of the cluster runs, but the pid in postmaster.pid belongs to another process or
//     to a zombie. PostgreSQL would refuse to start, so stopOrphans removes the file. It does not
//     remove a file whose pid is free: PostgreSQL does that itself.
func (c *cluster) stopOrphans(ctx context.Context) error {
	pid := readPID(c.pidFile())
	running, err := processesIn(c.dir, pid)
	if err != nil {
		return err
	}
	if slices.Contains(running, pid) {
		c.log.Warn("stopping a PostgreSQL that lost its owner", "pid", pid, "dir", c.dir)
		if err := c.stopOrphan(ctx, pid); err != nil {
			return err
		}
	} else if len(running) > 0 {
		c.log.Warn("waiting for the last processes of a dead PostgreSQL", "pids", running, "dir", c.dir)
	}
	left, err := c.await(ctx, pid, backendsLimit, func(running []int) bool { return len(running) == 0 })
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("processes %v of an earlier PostgreSQL still use %s", left, c.dir)
	}
	if pid = readPID(c.pidFile()); pid == 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	c.log.Warn("removing a postmaster.pid whose process id is in other use", "pid", pid, "dir", c.dir)
	if err := os.Remove(c.pidFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale postmaster.pid: %w", err)
	}
	return nil
}

// stopOrphan ends a postmaster that is not a child of this process.
func (c *cluster) stopOrphan(ctx context.Context, pid int) error {
	// On Linux this is a handle of the process: the signal cannot reach a later process with the
	// same pid.
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("orphaned PostgreSQL: %w", err)
	}
	gone := func(running []int) bool { return !slices.Contains(running, pid) }
	for _, step := range []struct {
		sig   os.Signal
		limit time.Duration
	}{{syscall.SIGINT, orphanFast}, {syscall.SIGQUIT, immediateStop}} {
		running, err := processesIn(c.dir, pid)
		if err != nil {
			return err
		}
		if gone(running) {
			return nil
		}
		if err := p.Signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("orphaned PostgreSQL (pid %d): %w", pid, err)
		}
		if running, err = c.await(ctx, pid, step.limit, gone); err != nil || gone(running) {
			return err
		}
	}
	return fmt.Errorf("orphaned PostgreSQL (pid %d) does not stop", pid)
}

// await polls the cluster's processes until ok is true for them, or until limit, and returns them.
// It returns an error if ctx ends first.
func (c *cluster) await(ctx context.Context, pid int, limit time.Duration, ok func([]int) bool) ([]int, error) {
	tick := time.NewTicker(orphanPoll)
	defer tick.Stop()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		running, err := processesIn(c.dir, pid)
		if err != nil || ok(running) {
			return running, err
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			return running, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for processes %v of an earlier PostgreSQL: %w", running, context.Cause(ctx))
		}
	}
}
