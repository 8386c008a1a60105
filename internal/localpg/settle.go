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
	settlePoll    = 20 * time.Millisecond // other people's children give no signal when they end
	orphanFast    = 60 * time.Second      // a fast stop writes a checkpoint
	backendsLimit = 60 * time.Second      // backends notice a dead postmaster when they next wait
)

// settle deals with what an earlier owner of the cluster left, so that a server can start:
//
//   - its postmaster still runs (we hold the lock, so it lost its owner): fast stop;
//   - only backends run: wait for them, and leave postmaster.pid alone, because the next postmaster reads there which shared
//     memory must be gone before it may touch the data;
//   - nothing runs, but the pid in postmaster.pid is taken, by a stranger or by a zombie that nobody reaps: PostgreSQL
//     would refuse to start, so the file goes. Only then: a pid that is free it handles itself.
func (c *cluster) settle(ctx context.Context) error {
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

// stopOrphan ends a postmaster that is not our child.
func (c *cluster) stopOrphan(ctx context.Context, pid int) error {
	p, err := os.FindProcess(pid) // a handle, where the system has them: the signal cannot reach a successor of that pid
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

// await looks at the cluster's processes until they satisfy ok, or limit is over, and returns them; an error if ctx ends first.
func (c *cluster) await(ctx context.Context, pid int, limit time.Duration, ok func([]int) bool) ([]int, error) {
	tick := time.NewTicker(settlePoll)
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
