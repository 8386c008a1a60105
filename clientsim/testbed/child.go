package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is a process that was started.
type child struct {
	what string // name in errors
	cmd  *exec.Cmd
	log  *lastLines
	done chan struct{} // closed when the process has exited and err is set
	err  error
}

// startChild starts a process. The process writes its errors to log. If this process is root, the
// new process runs as owner. If owner is nil, it runs as this process does.
func startChild(what string, cmd *exec.Cmd, log *lastLines, owner *syscall.Stat_t) (*child, error) {
	c := &child{what: what, cmd: cmd, log: log, done: make(chan struct{})}
	runAs(cmd, owner)
	started := make(chan error, 1)
	go func() {
		// The kernel stops some children when the thread that started them ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return c, nil
}

// runAs makes a command run in a process group of its own, so that Control-C at a terminal does not
// reach it. If this process is root, the command runs as owner.
func runAs(cmd *exec.Cmd, owner *syscall.Stat_t) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if owner == nil {
		return
	}
	if os.Geteuid() == 0 { // PostgreSQL does not run as root
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid, Groups: []uint32{}}
	}
	stopWithParent(cmd.SysProcAttr)
}

// exited reports whether the process has ended.
func (c *child) exited() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// await waits for the end of the process.
func (c *child) await(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s: still running after %s\n%s", c.what, limit, c.log)
	}
}

// signal signals the process, unless it has ended.
func (c *child) signal(s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", c.what, err)
	}
	return nil
}

// end signals the process and waits for its end. A process that does not end in time is killed.
func (c *child) end(s syscall.Signal) error {
	if err := c.signal(s); err != nil {
		return err
	}
	if err := c.await(stopLimit); err != nil {
		return errors.Join(err, c.cmd.Process.Kill())
	}
	return nil
}
